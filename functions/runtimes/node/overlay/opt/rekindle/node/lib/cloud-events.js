// CloudEvents 1.0 over HTTP, in binary, structured and batched mode: what a handler gets of one, and how one that it
// returns is sent. To the handler an event is an object as in the JSON format, and a batch an array of these.
'use strict';

const { isUtf8 } = require('node:buffer');
const { validateHeaderValue } = require('node:http');
const { InvalidResponse, toJson } = require('./payload');

const ONE = 'application/cloudevents+json';
const BATCH = 'application/cloudevents-batch+json';
const REQUIRED = ['specversion', 'id', 'source', 'type'];
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** The request says that it is a CloudEvent, and is none. */
class InvalidEvent extends Error {}

/**
 * The event or batch that the request with this `body` carries, or null if it is a plain request. Throws InvalidEvent.
 */
function received(request, body) {
  const kind = mediaType(request.headers['content-type'] ?? '');
  if (kind === ONE || kind === BATCH) {
    const value = parse(body);
    if (kind === BATCH && !Array.isArray(value)) throw new InvalidEvent('a batch is a JSON array of events');
    (kind === BATCH ? value : [value]).forEach(check);
    return value;
  }
  // Other versions of the specification are left to the handler, as plain requests.
  if (!(request.headers['ce-specversion'] ?? '').startsWith('1.')) return null;
  const event = binary(request.headers, body);
  check(event);
  return event;
}

function check(event) {
  if (typeof event !== 'object' || event === null || Array.isArray(event)) {
    throw new InvalidEvent('an event is a JSON object');
  }
  const missing = REQUIRED.find((name) => !isText(event[name]));
  if (missing) throw new InvalidEvent(`a CloudEvent needs ${REQUIRED.join(', ')}: ${missing} is missing`);
}

function binary(headers, body) {
  const event = {};
  for (const [name, value] of Object.entries(headers)) {
    if (name.startsWith('ce-')) event[name.slice(3)] = decoded(String(value));
  }
  const kind = headers['content-type'];
  if (kind !== undefined) event.datacontenttype = kind;
  if (body.length === 0) return event;
  if (kind === undefined || isJson(kind)) event.data = parse(body);
  else if (mediaType(kind).startsWith('text/') && isUtf8(body)) event.data = body.toString('utf8');
  else event.data_base64 = body.toString('base64');
  return event;
}

function parse(body) {
  try {
    return JSON.parse(body.toString('utf8'));
  } catch (error) {
    throw new InvalidEvent(`the body is not JSON: ${error.message}`);
  }
}

const mediaType = (kind) => kind.split(';')[0].trim().toLowerCase();
const isJson = (kind) => mediaType(kind) === 'application/json' || mediaType(kind).endsWith('+json');
const isText = (value) => typeof value === 'string' && value !== '';

// What is escaped wrongly stays as it is.
function decoded(value) {
  const plain = /^".*"$/s.test(value) && value.length > 1 ? value.slice(1, -1).replace(/\\(.)/gs, '$1') : value;
  try {
    return decodeURIComponent(plain);
  } catch {
    return plain;
  }
}

/**
 * The response `{ status, headers, body }` of a handler that was given a CloudEvent and returns one or several, in the
 * mode of `request`; null if it returns something else. Throws InvalidResponse, TypeError.
 */
function response(value, request) {
  const kind = mediaType(request.headers['content-type'] ?? '');
  if (Array.isArray(value) && value.length > 0 && value.every(isEvent)) return json(BATCH, value.map(withText));
  if (!isEvent(value)) return null;
  if (kind === ONE || kind === BATCH) return json(ONE, withText(value));
  const headers = [];
  for (const [name, attribute] of Object.entries(value)) {
    if (['data', 'data_base64', 'datacontenttype'].includes(name)) continue;
    if (attribute === undefined || attribute === null) continue;
    if (!/^[a-z0-9]{1,64}$/.test(name)) {
      throw new InvalidResponse(`${JSON.stringify(name)} is no attribute of a CloudEvent: use a-z and 0-9`);
    }
    headers.push(`ce-${name}`, encoded(attribute));
  }
  const type = value.datacontenttype ?? 'application/json';
  const body = dataOf(value, type);
  if (body.length > 0 || value.datacontenttype !== undefined) {
    try {
      validateHeaderValue('content-type', String(type));
    } catch (error) {
      throw new InvalidResponse(error.message);
    }
    headers.push('content-type', String(type));
  }
  return { status: 200, headers, body };
}

function dataOf(value, type) {
  if (value.data_base64 !== undefined) {
    if (typeof value.data_base64 !== 'string' || !BASE64.test(value.data_base64)) {
      throw new InvalidResponse('data_base64 is no base64');
    }
    return Buffer.from(value.data_base64, 'base64');
  }
  const { data } = value;
  if (data === undefined || data === null) return Buffer.alloc(0);
  if (data instanceof Uint8Array) return Buffer.from(data);
  return typeof data === 'string' && !isJson(String(type)) ? Buffer.from(data) : toJson(data);
}

// Printable ASCII but for the space, the double quote and the percent sign goes into a header as it is.
function encoded(attribute) {
  if (!['string', 'number', 'boolean'].includes(typeof attribute)) {
    throw new InvalidResponse(`attributes of a CloudEvent are texts, numbers and booleans, not ${typeof attribute}`);
  }
  const escaped = (byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  return String(attribute).replace(/[^\x21\x23\x24\x26-\x7e]+/gu, (part) =>
    [...Buffer.from(part)].map(escaped).join(''),
  );
}

const json = (kind, value) => ({ status: 200, headers: ['content-type', kind], body: toJson(value) });
const isEvent = (value) => typeof value === 'object' && value !== null && REQUIRED.every((name) => isText(value[name]));

// The event with binary data as JSON can say it.
function withText(event) {
  const { data, ...rest } = event;
  return data instanceof Uint8Array ? { ...rest, data_base64: Buffer.from(data).toString('base64') } : event;
}

module.exports = { received, response, InvalidEvent };
