// An HTTP invocation: the event a handler sees, and the response its value becomes.
'use strict';

const { test, describe, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Bootstrap } = require('./bootstrap-process');

describe('the event', () => {
  let fn;
  before(async () => (fn = await Bootstrap.start({ 'index.js': 'exports.handler = async (event) => event;' })));
  after(() => fn.stop());

  test('is payload 2.0 with path, query, headers and context', async () => {
    const { json: event } = await fn.request('/a%20b/c?x=1&y=two%20words&x=3&empty=', {
      headers: {
        host: 'greet.localhost:8080', 'user-agent': 'test/1', 'x-request-id': 'r-1',
        'x-forwarded-for': '192.0.2.7, 10.0.0.1',
      },
    });
    assert.equal(event.version, '2.0');
    assert.equal(event.rawPath, '/a%20b/c');
    assert.equal(event.rawQueryString, 'x=1&y=two%20words&x=3&empty=');
    assert.deepEqual(event.queryStringParameters, { x: '1,3', y: 'two words', empty: '' });
    assert.equal(event.headers['x-request-id'], 'r-1');
    const { requestContext: context } = event;
    assert.deepEqual(context.http, {
      method: 'GET', path: '/a%20b/c', protocol: 'HTTP/1.1', sourceIp: '192.0.2.7', userAgent: 'test/1',
    });
    assert.deepEqual(
      [context.requestId, context.apiId, context.domainName, context.domainPrefix],
      ['r-1', 'greet', 'greet.localhost:8080', 'greet'],
    );
    assert.match(context.time, /^\d\d\/[A-Z][a-z]{2}\/\d{4}:\d\d:\d\d:\d\d \+0000$/);
  });

  test('without query, cookies or body goes without those keys', async () => {
    const { json: event } = await fn.request('/');
    for (const key of ['queryStringParameters', 'cookies', 'body']) assert.ok(!(key in event), key);
  });

  test("keeps the platform's own headers from the handler", async () => {
    const { json: event } = await fn.request('/', {
      headers: { 'x-fn-deadline-ms': '1999999999999', 'x-fn-invocation': 'http', connection: 'keep-alive' },
    });
    const kept = Object.keys(event.headers).filter((name) => name.startsWith('x-fn-') || name === 'connection');
    assert.deepEqual(kept, []);
  });

  test('splits cookies', async () => {
    assert.deepEqual((await fn.request('/', { headers: { cookie: 'a=1; b=2' } })).json.cookies, ['a=1', 'b=2']);
  });

  test('carries text as text, binary and forms as base64', async () => {
    const send = async (type, body) =>
      (await fn.request('/', { method: 'POST', body, headers: { 'content-type': type } })).json;
    for (const type of ['text/plain', 'application/json; charset=utf-8', 'application/problem+json']) {
      const event = await send(type, 'grün');
      assert.deepEqual([event.body, event.isBase64Encoded], ['grün', false], type);
    }
    for (const [type, body] of [
      ['application/octet-stream', Buffer.from([0, 255])],
      ['application/x-www-form-urlencoded', 'a=1'],
      ['text/plain', Buffer.from([255])],
    ]) {
      const event = await send(type, body);
      assert.equal(event.isBase64Encoded, true, type);
      assert.deepEqual(Buffer.from(event.body, 'base64'), Buffer.from(body), type);
    }
  });
});

describe('the response', () => {
  let fn;
  before(async () => {
    fn = await Bootstrap.start({ 'index.js': 'exports.handler = async (event) => eval("(" + event.body + ")");' });
  });
  after(() => fn.stop());
  const answer = (expression) =>
    fn.request('/', { method: 'POST', body: expression, headers: { 'content-type': 'text/plain' } });

  test('of a response object has its status, headers and body', async () => {
    const { status, headers, text } = await answer(
      "{ statusCode: 201, headers: { 'X-A': 'b', 'Content-Type': 'text/html' }, body: 'grün' }",
    );
    assert.deepEqual([status, headers['x-a'], headers['content-type'], text], [201, 'b', 'text/html', 'grün']);
  });

  test('of a response object without content type is JSON and may lack a body', async () => {
    const { status, headers, text } = await answer("{ statusCode: '404' }");
    assert.deepEqual([status, headers['content-type'], text], [404, 'application/json', '']);
  });

  test('of any other value is its JSON', async () => {
    for (const [expression, body] of [
      ["'hi'", '"hi"'],
      ['null', 'null'],
      ['undefined', 'null'],
      ["[1, { a: 'ü' }]", '[1,{"a":"ü"}]'],
      ['{ a: 1 }', '{"a":1}'],
    ]) {
      const { status, headers, text } = await answer(expression);
      assert.deepEqual([status, headers['content-type'], text], [200, 'application/json', body], expression);
    }
  });

  test('decodes base64, sets every cookie, ignores framing headers', async () => {
    const { bytes, headers } = await answer(
      "{ statusCode: 200, body: 'AP8=', isBase64Encoded: true, cookies: ['a=1; Secure', 'b=2'], " +
        "headers: { 'Content-Length': 999 } }",
    );
    assert.deepEqual(bytes, Buffer.from([0, 255]));
    assert.deepEqual(headers['set-cookie'], ['a=1; Secure', 'b=2']);
    assert.equal(headers['content-length'], '2');
  });

  test('has no body for 204 and HEAD', async () => {
    const { status, text, headers } = await answer("{ statusCode: 204, body: 'not to be sent' }");
    assert.deepEqual([status, text, headers['content-length']], [204, '', undefined]);
  });

  test('refuses what is no response', async () => {
    for (const expression of [
      "{ statusCode: 'x' }",
      '{ statusCode: 99 }',
      "{ statusCode: 200, headers: { a: 'b\\r\\nc: d' } }",
      "{ statusCode: 200, headers: { 'a b': 'c' } }",
      "{ statusCode: 200, headers: ['a'] }",
    ]) {
      const { status, headers, json } = await answer(expression);
      assert.deepEqual(
        [status, headers['x-fn-function-error'], json.errorType, headers.c],
        [500, 'Unhandled', 'Runtime.InvalidResponse', undefined],
        expression,
      );
    }
  });

  test('to a value that JSON cannot carry is a marshal error', async () => {
    for (const expression of ['1n', '((a) => (a.a = a))({})', '{ statusCode: 200, body: { a: 1n } }']) {
      const { status, headers, json } = await answer(expression);
      assert.deepEqual(
        [status, headers['x-fn-function-error'], json.errorType],
        [500, 'Unhandled', 'Runtime.MarshalError'],
        expression,
      );
    }
  });
});
