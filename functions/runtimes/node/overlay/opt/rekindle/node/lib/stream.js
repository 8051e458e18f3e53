// Streamed responses, with the interface AWS Lambda's Node.js runtime has:
//
//   exports.handler = awslambda.streamifyResponse(async (event, responseStream, context) => {
//     responseStream = awslambda.HttpResponseStream.from(responseStream, { statusCode: 200, headers: {...} });
//     responseStream.write('...'); responseStream.end();
//   });
'use strict';

const { Writable } = require('node:stream');
const { head } = require('./payload');

const STREAMED = Symbol('rekindle.streamed');

/** The response body as a stream. The head goes out with the first bytes, so it may be set until then. */
class ResponseStream extends Writable {
  #response;
  #status = 200;
  #headers = [];

  constructor(response) {
    super({ decodeStrings: true });
    this.#response = response;
    response.on('close', () => this.destroy());
  }

  /** Sets the content type, if no metadata does. */
  setContentType(type) {
    this.#headers = ['content-type', String(type)];
  }

  setHead(metadata) {
    ({ status: this.#status, headers: this.#headers } = head(metadata));
  }

  #sendHead() {
    if (this.#response.headersSent) return;
    const typed = this.#headers.some((name, index) => index % 2 === 0 && name.toLowerCase() === 'content-type');
    const headers = typed ? this.#headers : [...this.#headers, 'content-type', 'application/octet-stream'];
    this.#response.writeHead(this.#status, headers);
  }

  _write(chunk, _encoding, done) {
    this.#sendHead();
    // Back-pressure: the next chunk is taken once the socket has taken this one.
    if (this.#response.write(chunk)) done();
    else this.#response.once('drain', done);
  }

  _final(done) {
    this.#sendHead();
    this.#response.end(done);
  }
}

const awslambda = {
  streamifyResponse(handler) {
    const streamed = (event, stream, context) => handler(event, stream, context);
    streamed[STREAMED] = true;
    return streamed;
  },
  HttpResponseStream: {
    from(stream, metadata) {
      stream.setHead(metadata);
      return stream;
    },
  },
};

/** Whether `handler` came from streamifyResponse. */
function isStreamed(handler) {
  return handler[STREAMED] === true;
}

module.exports = { awslambda, isStreamed, ResponseStream };
