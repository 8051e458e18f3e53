// Invocations of other functions of the same namespace: JSON in, JSON out, over the platform's address inside of the
// sandbox. Each has a connection of its own, so that none of before a snapshot is ever used.
'use strict';

const http = require('node:http');

const HOST = 'fn.internal';
const NAME = /^[a-z0-9][a-z0-9-]{0,62}$/;
// As long as an invocation can take at all; the platform ends one that its caller has no time left for.
const LIMIT_MS = 900_000;

/**
 * An invocation that failed. `status` is HTTP's, `code` the platform's word for what went wrong
 * (docs/reference/errors.md).
 */
class InvokeError extends Error {
  constructor(name, status, code, message, cause) {
    super(`${name}: ${code} (${status}): ${message}`, { cause });
    this.name = 'InvokeError';
    this.function = name;
    this.status = status;
    this.code = code;
  }
}

/** Resolves to the function's result. Rejects with an InvokeError. */
const now = (name, payload, options) => sent('/invoke/', name, payload, options);

/** Has the function run later, and again if it fails; resolves to the invocation's id. Rejects with an InvokeError. */
const later = async (name, payload, options) => (await sent('/invoke-async/', name, payload, options)).id;

async function sent(path, name, payload, { traceparent, timeoutMs = LIMIT_MS } = {}) {
  if (typeof name !== 'string' || !NAME.test(name)) {
    throw new TypeError(
      `${JSON.stringify(name)} is no function's name: use the name in its fn.toml, without its namespace`,
    );
  }
  const body = Buffer.from(payload === undefined ? '' : JSON.stringify(payload));
  const { status, type, text } = await exchange(path + name, body, traceparent, timeoutMs).catch((error) => {
    if (error.code === 'ENOTFOUND' || error.code === 'EAI_AGAIN') {
      const why = 'other functions cannot be reached: network = "none" in fn.toml is without them';
      throw new InvokeError(name, 503, 'unavailable', why, error);
    }
    if (error.name === 'AbortError' || error.name === 'TimeoutError') {
      throw new InvokeError(name, 504, 'function_timeout', 'it did not answer in the time given', error);
    }
    throw new InvokeError(name, 503, 'unavailable', `the call broke off, and may have run: ${error.message}`, error);
  });
  let value = text;
  if (type.includes('json')) {
    try {
      value = text.trim() === '' ? null : JSON.parse(text);
    } catch (error) {
      throw new InvokeError(name, 502, 'invalid_response', `what it answered is not JSON: ${error.message}`, error);
    }
  }
  if (status >= 200 && status < 300) return value;
  throw new InvokeError(name, status, value?.code ?? 'function_error', value?.message ?? `it answered ${status}`);
}

function exchange(path, body, traceparent, timeoutMs) {
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json', 'content-length': body.length };
    if (traceparent) headers.traceparent = traceparent;
    const signal = AbortSignal.timeout(Math.max(1, Math.min(timeoutMs, LIMIT_MS)));
    const request = http.request({ host: HOST, port: 80, path, method: 'POST', headers, agent: false, signal });
    request.on('error', reject);
    request.on('response', (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('error', reject);
      response.on('end', () => {
        resolve({
          status: response.statusCode,
          type: response.headers['content-type'] ?? '',
          text: Buffer.concat(parts).toString(),
        });
      });
    });
    request.end(body);
  });
}

module.exports = { now, later, InvokeError };
