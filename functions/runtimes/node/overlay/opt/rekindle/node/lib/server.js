// The HTTP server: one invocation per request, every failure with its own answer.
'use strict';

const http = require('node:http');
const cloudEvents = require('./cloud-events');
const { Context } = require('./context');
const { call } = require('./handler');
const lifecycle = require('./lifecycle');
const { httpEvent, httpResponse, toJson, InvalidResponse, JSON_TYPE } = require('./payload');
const secrets = require('./secrets');
const { isStreamed, ResponseStream } = require('./stream');

const MAX_HEAD = 256 * 1024;
const ROUTES = new Map([
  ['/.rekindle/before-snapshot', lifecycle.beforeSnapshot],
  ['/.rekindle/after-restore', lifecycle.afterRestore],
]);

/**
 * Listens on 127.0.0.1:`port` and serves `handler` until the process is killed. If that is null, what `load` resolves
 * to, which the platform's POST /.rekindle/load calls with an environment, once.
 */
function serve(port, handler, load) {
  let loading = handler !== null;
  const routes = new Map(ROUTES).set('/.rekindle/load', async (body) => {
    const environment = parseEnvironment(body);
    if (loading) throw new Refused(409, 'a function is loaded already');
    loading = true;
    handler = await load(environment);
    return {};
  });
  // The platform closes connections it no longer needs. No timer of ours may: time leaps over a restore.
  const server = http.createServer({
    maxHeaderSize: MAX_HEAD,
    requestTimeout: 0,
    headersTimeout: 0,
    keepAliveTimeout: 0,
    noDelay: true,
  });
  server.on('request', async (request, response) => {
    response.sendDate = false;
    response.on('error', () => {}); // The platform went away; there is nobody to tell.
    try {
      const body = await read(request);
      if (body === null) return;
      const route = routes.get(request.url);
      if (route !== undefined) await platformCall(route, request, body, response);
      else if (handler === null) sendError(response, 503, 'Runtime.NotLoaded', 'no function is loaded yet');
      else await invoke(handler, request, body, response);
    } catch (error) {
      console.error(error);
      if (response.headersSent) response.destroy();
      else sendError(response, 500, 'Runtime.Internal', `the runtime failed: ${error?.message}`);
    }
  });
  server.on('error', (error) => {
    console.error(`rekindle: cannot listen on 127.0.0.1:${port}: ${error.message}`);
    process.exit(1);
  });
  server.listen({ host: '127.0.0.1', port, backlog: 1024 });
}

// The whole body, or null if the peer closed within it.
async function read(request) {
  const chunks = [];
  try {
    for await (const chunk of request) chunks.push(chunk);
  } catch {
    return null;
  }
  return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
}

/** A call of the platform's that cannot be followed. */
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function parseEnvironment(body) {
  let environment;
  try {
    environment = JSON.parse(body.toString('utf8')).env;
  } catch {
    environment = undefined;
  }
  const isObject = typeof environment === 'object' && environment !== null && !Array.isArray(environment);
  if (!isObject || !Object.values(environment).every((value) => typeof value === 'string')) {
    throw new Refused(400, 'send {"env": {"NAME": "value"}}');
  }
  return environment;
}

async function platformCall(route, request, body, response) {
  if (request.method !== 'POST') return sendError(response, 405, 'Runtime.BadRequest', `${request.url} takes POST`);
  try {
    send(response, 200, ['content-type', JSON_TYPE], toJson(await route(body, request)));
  } catch (error) {
    if (error instanceof Refused) return sendError(response, error.status, 'Runtime.BadRequest', error.message);
    if (!(error instanceof lifecycle.HookFailed)) throw error;
    sendError(response, 500, 'Runtime.HookFailed', error.message);
  }
}

async function invoke(handler, request, body, response) {
  secrets.refresh();
  const isEvent = request.headers['x-fn-invocation'] === 'event';
  let event;
  let cloudEvent = null;
  if (isEvent) {
    try {
      // An invocation without a payload is one with an empty object, as on Lambda.
      const text = body.toString('utf8');
      event = text.trim() === '' ? {} : JSON.parse(text);
    } catch (error) {
      const why = `the event is not JSON: ${error.message}; send a JSON document as the body`;
      return sendError(response, 400, 'Runtime.InvalidEvent', why);
    }
  } else {
    try {
      cloudEvent = cloudEvents.received(request, body);
    } catch (error) {
      if (!(error instanceof cloudEvents.InvalidEvent)) throw error;
      return sendError(response, 400, 'Runtime.InvalidEvent', error.message);
    }
    event = cloudEvent ?? httpEvent(request, body);
  }
  const context = new Context(request.headers);
  if (isStreamed(handler)) return stream(handler, event, context, response);
  let value;
  try {
    value = await call(handler, event, context);
  } catch (error) {
    return functionError(response, error);
  }
  let answer;
  try {
    if (isEvent) answer = { status: 200, headers: ['content-type', JSON_TYPE], body: toJson(value) };
    else answer = (cloudEvent && cloudEvents.response(value, request)) ?? httpResponse(value);
  } catch (error) {
    const [kind, message] = error instanceof InvalidResponse
      ? ['Runtime.InvalidResponse', error.message]
      : ['Runtime.MarshalError', `the handler's return value cannot be sent as JSON: ${error.message}`];
    console.error(`rekindle: ${message}`);
    return sendError(response, 500, kind, message, [], true);
  }
  send(response, answer.status, answer.headers, answer.body);
}

async function stream(handler, event, context, response) {
  const responseStream = new ResponseStream(response);
  responseStream.on('error', () => {});
  try {
    await handler(event, responseStream, context);
    if (!responseStream.writableEnded) responseStream.end();
  } catch (error) {
    // Once bytes are out the only honest answer left is a broken response.
    if (!response.headersSent) return functionError(response, error);
    console.error(error);
    response.destroy();
  }
}

function functionError(response, error) {
  console.error(error);
  const isError = error instanceof Error || typeof error?.stack === 'string';
  const kind = isError ? error.name || error.constructor.name : 'Error';
  const thrown = () => (typeof error === 'string' ? error : JSON.stringify(error) ?? String(error));
  const message = isError ? String(error.message) : thrown();
  const trace = isError ? String(error.stack).split('\n').slice(1).map((line) => line.trim()) : [];
  sendError(response, 500, kind, message, trace, true);
}

function sendError(response, status, errorType, errorMessage, stackTrace = [], byFunction = false) {
  const headers = ['content-type', JSON_TYPE];
  if (byFunction) headers.push('x-fn-function-error', 'Unhandled');
  send(response, status, headers, toJson({ errorType, errorMessage, stackTrace }));
}

function send(response, status, headers, body) {
  const bare = status === 204 || status === 304;
  response.writeHead(status, bare ? headers : [...headers, 'content-length', String(body.length)]);
  response.end(bare ? undefined : body);
}

module.exports = { serve };
