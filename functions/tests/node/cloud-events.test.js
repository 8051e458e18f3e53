// CloudEvents 1.0: what a handler gets, and what comes of one that it returns.
'use strict';

const { test, describe, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Bootstrap } = require('./bootstrap-process');

// Answers with the event under `data`, in an event of its own.
const REPLY = `exports.handler = async (event) => {
  if (Array.isArray(event)) return event.map((one) => ({ ...one, id: one.id + '-r' }));
  if (event.specversion === undefined) return { plain: event.rawPath };
  const own = { specversion: '1.0', id: 'r-1', source: '/replies', type: 'reply' };
  if (event.type === 'wants.none') return { statusCode: 202 };
  if (event.type === 'wants.bytes') return { ...own, datacontenttype: 'image/png', data: Buffer.from([0, 255]) };
  if (event.type === 'wants.wrong') return { ...own, 'Bad-Name': 'x' };
  return { ...own, subject: 'grün 100%', count: 3, flag: true, data: event };
};`;
const BINARY = { 'ce-specversion': '1.0', 'ce-id': 'e-1', 'ce-source': '/shop', 'ce-type': 'order.made' };
const ONE = 'application/cloudevents+json';
const BATCH = 'application/cloudevents-batch+json';

describe('a CloudEvent', () => {
  let fn;
  before(async () => (fn = await Bootstrap.start({ 'index.js': REPLY })));
  after(() => fn.stop());
  const post = (body, headers) => fn.request('/', { method: 'POST', body, headers });

  test('in binary mode is headers and a body', async () => {
    const { json } = await post('{"a": 1}', {
      ...BINARY, 'content-type': 'application/json', 'ce-subject': 'gr%C3%BCn%20%22x%22',
    });
    const expected = {
      specversion: '1.0', id: 'e-1', source: '/shop', type: 'order.made', subject: 'grün "x"',
      datacontenttype: 'application/json', data: { a: 1 },
    };
    assert.deepEqual(json, expected);
  });

  test('carries data of any type or none', async () => {
    for (const [kind, body, expected] of [
      ['text/plain', 'grün', { data: 'grün' }],
      ['image/png', Buffer.from([0, 255]), { data_base64: 'AP8=' }],
      ['application/vnd.x+json', '[1]', { data: [1] }],
      [undefined, '7', { data: 7 }],
      [undefined, undefined, {}],
    ]) {
      const { json } = await post(body, kind ? { ...BINARY, 'content-type': kind } : BINARY);
      const data = Object.entries(json).filter(([name]) => name === 'data' || name === 'data_base64');
      assert.deepEqual(Object.fromEntries(data), expected, kind);
    }
  });

  test('in structured mode is the body', async () => {
    const event = { specversion: '1.0', id: 'e-2', source: '/shop', type: 'order.made', data: { b: 2 } };
    const { headers, json } = await post(JSON.stringify(event), { 'content-type': `${ONE}; charset=utf-8` });
    assert.deepEqual([headers['content-type'], json.type, json.data], [ONE, 'reply', event]);
  });

  test('may come in a batch', async () => {
    const batch = [0, 1, 2].map((n) => ({ specversion: '1.0', id: String(n), source: '/s', type: 't' }));
    const { headers, json } = await post(JSON.stringify(batch), { 'content-type': BATCH });
    assert.equal(headers['content-type'], BATCH);
    assert.deepEqual(json.map(({ id }) => id), ['0-r', '1-r', '2-r']);
  });

  test('that a handler returns is sent in the mode of the request', async () => {
    const { headers } = await post('{}', { ...BINARY, 'content-type': 'application/json' });
    const names = ['specversion', 'id', 'source', 'type', 'subject', 'count', 'flag'];
    assert.deepEqual(
      names.map((name) => headers[`ce-${name}`]),
      ['1.0', 'r-1', '/replies', 'reply', 'gr%C3%BCn%20100%25', '3', 'true'],
    );
    const image = await post(undefined, { ...BINARY, 'ce-type': 'wants.bytes' });
    assert.deepEqual([image.headers['content-type'], image.bytes], ['image/png', Buffer.from([0, 255])]);
    const event = JSON.stringify({ specversion: '1.0', id: '1', source: '/s', type: 'wants.bytes' });
    const structured = await post(event, { 'content-type': ONE });
    assert.equal(structured.json.data_base64, 'AP8=');
  });

  test('may be answered by any other response', async () => {
    assert.equal((await post(undefined, { ...BINARY, 'ce-type': 'wants.none' })).status, 202);
  });

  test('that is none is refused and one that cannot be sent is an error', async () => {
    for (const [body, headers] of [
      ['{', { 'content-type': ONE }],
      ['[]', { 'content-type': ONE }],
      ['{}', { 'content-type': BATCH }],
      ['[1]', { 'content-type': BATCH }],
      [undefined, { 'ce-specversion': '1.0', 'ce-id': '1' }],
      ['{', { ...BINARY, 'content-type': 'application/json' }],
    ]) {
      const { status, json } = await post(body, headers);
      assert.deepEqual([status, json.errorType], [400, 'Runtime.InvalidEvent'], JSON.stringify([body, headers]));
    }
    const { status, json } = await post(undefined, { ...BINARY, 'ce-type': 'wants.wrong' });
    assert.deepEqual([status, json.errorType], [500, 'Runtime.InvalidResponse']);
  });

  test('of another version and a plain request stay plain', async () => {
    assert.deepEqual((await post(undefined, { ...BINARY, 'ce-specversion': '0.3' })).json, { plain: '/' });
    assert.deepEqual((await fn.request('/')).json, { plain: '/' });
  });
});
