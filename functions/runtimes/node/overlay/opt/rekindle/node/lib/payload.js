// Translation between HTTP and what a handler sees: AWS Lambda's payload format 2.0, as function URLs use it.
'use strict';

const { isUtf8 } = require('node:buffer');
const { validateHeaderName, validateHeaderValue } = require('node:http');
const { fn } = require('./context');

const JSON_TYPE = 'application/json';
// Of what the platform adds for the runtime, or what holds for one connection only, the handler sees nothing.
const HIDDEN = new Set([
  'x-fn-invocation',
  'x-fn-deadline-ms',
  'connection',
  'keep-alive',
  'transfer-encoding',
  'te',
  'trailer',
  'upgrade',
  'expect',
]);
// The server's to set.
const FRAMING = new Set(['content-length', 'connection', 'keep-alive', 'transfer-encoding', 'trailer', 'upgrade']);
const TEXT_TYPES = new Set(['application/json', 'application/xml', 'application/javascript', 'application/graphql']);
const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/** The handler returned a response object that is no HTTP response. */
class InvalidResponse extends Error {}

/** `value` as JSON bytes; what JSON cannot say at the top (undefined, a function) is null. Throws TypeError. */
function toJson(value) {
  return Buffer.from(JSON.stringify(value) ?? 'null');
}

/** The payload 2.0 event for the request with this `body`. */
function httpEvent(request, body) {
  const mark = request.url.indexOf('?');
  const path = mark < 0 ? request.url : request.url.slice(0, mark);
  const query = mark < 0 ? '' : request.url.slice(mark + 1);
  const headers = {};
  for (const [name, value] of Object.entries(request.headers)) {
    if (!HIDDEN.has(name)) headers[name] = Array.isArray(value) ? value.join(',') : value;
  }
  const now = new Date();
  const host = headers.host ?? '';
  const event = {
    version: '2.0',
    routeKey: '$default',
    rawPath: path,
    rawQueryString: query,
    headers,
    requestContext: {
      accountId: 'anonymous',
      apiId: fn.name,
      domainName: host,
      domainPrefix: host.split('.')[0],
      http: {
        method: request.method,
        path,
        protocol: `HTTP/${request.httpVersion}`,
        sourceIp: (headers['x-forwarded-for'] ?? request.socket.remoteAddress ?? '').split(',')[0].trim(),
        userAgent: headers['user-agent'] ?? '',
      },
      requestId: headers['x-request-id'] ?? '',
      routeKey: '$default',
      stage: '$default',
      time: commonLogTime(now),
      timeEpoch: now.getTime(),
    },
    isBase64Encoded: false,
  };
  if (headers.cookie) event.cookies = headers.cookie.split(';').map((cookie) => cookie.trim()).filter(Boolean);
  if (query) {
    event.queryStringParameters = {};
    for (const [name, value] of new URLSearchParams(query)) {
      const before = event.queryStringParameters[name];
      event.queryStringParameters[name] = before === undefined ? value : `${before},${value}`;
    }
  }
  if (body.length > 0) {
    event.isBase64Encoded = !isText(body, headers['content-type'] ?? 'text/plain');
    event.body = body.toString(event.isBase64Encoded ? 'base64' : 'utf8');
  }
  return event;
}

// 21/Nov/2026:08:03:00 +0000
function commonLogTime(date) {
  const two = (number) => String(number).padStart(2, '0');
  const day = `${two(date.getUTCDate())}/${MONTHS[date.getUTCMonth()]}/${date.getUTCFullYear()}`;
  return `${day}:${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())} +0000`;
}

// Text where the type says text and the bytes are UTF-8. Forms are binary, as on Lambda.
function isText(body, contentType) {
  const kind = contentType.split(';')[0].trim().toLowerCase();
  return (kind.startsWith('text/') || TEXT_TYPES.has(kind) || /\+(json|xml)$/.test(kind)) && isUtf8(body);
}

/**
 * The HTTP response `{ status, headers, body }` that a handler's return `value` stands for; headers is a flat list of
 * names and values. Throws InvalidResponse for a response object that is none, TypeError for what JSON cannot carry.
 */
function httpResponse(value) {
  if (value === null || typeof value !== 'object' || value.statusCode === undefined) {
    return { status: 200, headers: ['content-type', JSON_TYPE], body: toJson(value) };
  }
  const { status, headers } = head(value);
  if (!headers.some((name, index) => index % 2 === 0 && name.toLowerCase() === 'content-type')) {
    headers.push('content-type', JSON_TYPE);
  }
  return { status, headers, body: bodyOf(value) };
}

/** Status and headers of a response object or of a stream's metadata. Throws InvalidResponse. */
function head(value) {
  const status = Number(value.statusCode ?? 200);
  if (!Number.isInteger(status) || status < 200 || status > 599) {
    throw new InvalidResponse(`statusCode ${JSON.stringify(value.statusCode)} is not a number between 200 and 599`);
  }
  const headers = [];
  for (const key of ['headers', 'multiValueHeaders']) {
    const entries = value[key] ?? {};
    if (typeof entries !== 'object' || Array.isArray(entries)) throw new InvalidResponse(`${key} is not an object`);
    for (const [name, item] of Object.entries(entries)) {
      if (FRAMING.has(name.toLowerCase())) continue;
      for (const one of Array.isArray(item) ? item : [item]) headers.push(...checkedHeader(name, one));
    }
  }
  for (const cookie of value.cookies ?? []) headers.push(...checkedHeader('set-cookie', cookie));
  return { status, headers };
}

// Text beyond Latin-1 goes out as UTF-8 bytes, which is what clients expect.
function checkedHeader(name, value) {
  const text = Buffer.from(String(value)).toString('latin1');
  try {
    validateHeaderName(name);
    validateHeaderValue(name, text);
  } catch (error) {
    throw new InvalidResponse(error.message);
  }
  return [name, text];
}

function bodyOf(value) {
  const { body } = value;
  if (body === undefined || body === null) return Buffer.alloc(0);
  if (typeof body === 'string') return Buffer.from(body, value.isBase64Encoded ? 'base64' : 'utf8');
  if (body instanceof Uint8Array) return Buffer.from(body);
  return toJson(body);
}

module.exports = { httpEvent, httpResponse, head, toJson, InvalidResponse, JSON_TYPE };
