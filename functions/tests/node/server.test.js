// The server under what real peers send, and streamed responses.
'use strict';

const { test, describe, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const { Bootstrap, LIMIT_MS } = require('./bootstrap-process');

const FILES = {
  'index.js': `
    exports.handler = async (event) => ({
      statusCode: 200,
      headers: { 'content-type': 'text/plain' },
      body: (event.body ?? '').length + ' ' + (event.body ?? '').slice(0, 20),
    });
    let release;
    exports.streamed = awslambda.streamifyResponse(async (event, stream, context) => {
      if (event.rawPath === '/early') throw new Error('before the head');
      stream = awslambda.HttpResponseStream.from(stream, {
        statusCode: 202, headers: { 'content-type': 'text/event-stream' }, cookies: ['a=1'],
      });
      if (event.rawPath === '/release') return release();
      stream.write('one,');
      if (event.rawPath === '/wait') await new Promise((resolve) => (release = resolve));
      await null;
      if (event.rawPath === '/late') throw new Error('after the head');
      stream.write('two');
      stream.end();
    });
  `,
};

describe('the server', () => {
  let fn;
  before(async () => (fn = await Bootstrap.start(FILES)));
  after(() => fn.stop());

  test('keeps the connection for the next request', async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    let sockets = 0;
    const create = agent.createConnection;
    agent.createConnection = function (...args) { sockets += 1; return create.apply(this, args); };
    for (const body of ['a', 'bb', 'ccc']) {
      const options = { method: 'POST', body, headers: { 'content-type': 'text/plain' }, agent };
      assert.equal((await fn.request('/', options)).text, `${body.length} ${body}`);
    }
    agent.destroy();
    assert.equal(sockets, 1);
  });

  test('reads chunked and large bodies', async () => {
    const received = await fn.raw(
      'POST / HTTP/1.1\r\nhost: h\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n' +
        'connection: close\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n',
    );
    assert.match(received, /13 abc0123456789/);
    const { text } = await fn.request('/', {
      method: 'POST', body: 'y'.repeat(5_000_000), headers: { 'content-type': 'text/plain' },
    });
    assert.equal(text, `5000000 ${'y'.repeat(20)}`);
  });

  test('outlives peers that leave in the middle, and closes its end of idle connections', async () => {
    for (const start of ['GET / HT', 'POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nabc', '']) {
      await new Promise((resolve) => {
        const socket = net.connect(fn.port, '127.0.0.1', () =>
          socket.write(start, () => { socket.destroy(); resolve(); }));
      });
    }
    const connected = () => new Promise((resolve) => {
      const socket = net.connect(fn.port, '127.0.0.1', () => resolve(socket));
    });
    const idle = await Promise.all(Array.from({ length: 20 }, connected));
    assert.equal((await fn.request('/')).status, 200);
    for (const socket of idle) socket.destroy();
    const sockets = () => fs.readdirSync(`/proc/${fn.process.pid}/fd`).filter((fd) => {
      try { return fs.readlinkSync(`/proc/${fn.process.pid}/fd/${fd}`).startsWith('socket:'); } catch { return false; }
    }).length;
    // stdout and stderr of a child are sockets too; what is left beside them is the listening one.
    assert.ok(await fn.until(() => sockets() <= 3), `${sockets()} sockets are left`);
  });
});

describe('a streamed response', () => {
  let fn;
  before(async () => (fn = await Bootstrap.start(FILES, 'index.streamed')));
  after(() => fn.stop());

  test('has its head and all of its pieces', async () => {
    const { status, headers, text } = await fn.request('/');
    assert.deepEqual(
      [status, headers['content-type'], headers['set-cookie'], text],
      [202, 'text/event-stream', ['a=1'], 'one,two'],
    );
  });

  test('arrives while the handler still runs', { timeout: LIMIT_MS }, async () => {
    // The handler goes on only once the client, having seen the first piece, says so.
    const pieces = [];
    await new Promise((resolve, reject) => {
      http.get({ host: '127.0.0.1', port: fn.port, path: '/wait' }, (response) => {
        response.on('data', (piece) => {
          if (pieces.length === 0) fn.request('/release').catch(reject);
          pieces.push(String(piece));
        });
        response.on('end', resolve);
      }).on('error', reject);
    });
    assert.equal(pieces.join(''), 'one,two');
  });

  test('that fails before its first byte is an ordinary error', async () => {
    const { status, headers, json } = await fn.request('/early');
    assert.deepEqual(
      [status, headers['x-fn-function-error'], json.errorMessage],
      [500, 'Unhandled', 'before the head'],
    );
  });

  test('that fails later is cut off', async () => {
    await assert.rejects(fn.request('/late'));
    assert.equal((await fn.request('/')).status, 202);
  });
});
