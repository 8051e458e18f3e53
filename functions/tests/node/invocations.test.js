// Event invocations, the context, handler styles, and every way an invocation fails.
'use strict';

const { test, describe } = require('node:test');
const assert = require('node:assert/strict');
const { Bootstrap } = require('./bootstrap-process');

async function withFunction(files, entry, body) {
  const fn = await Bootstrap.start(files, entry);
  try {
    await body(fn);
  } finally {
    await fn.stop();
  }
}

const HANDLERS = {
  'index.js': `
    exports.echo = async (event) => event;
    exports.describe = async (event, context) => ({ ...context, remaining: context.getRemainingTimeInMillis() });
    exports.callback = (event, context, done) =>
      setImmediate(() => (event.fail ? done(new TypeError('called back')) : done(null, event.value)));
    exports.plain = (event) => event.value;
    exports.succeed = (event, context, _) => setImmediate(() => context.succeed('succeeded'));
    exports.fail = async (event) => { if (event === 'text') throw 'just text'; inner(event); };
    function inner(event) { throw new RangeError('bad ' + event); }
    exports.synchronous = () => { throw new Error('at once'); };
    exports.talk = async () => { console.log('to stdout'); console.error('to stderr'); };
    exports.nested = { deeper: { handler: async () => 'deep' } };
    let met; const both = new Promise((resolve) => (met = resolve)); let here = 0;
    exports.meet = async () => { here += 1; if (here === 2) met('met'); return both; };
    exports.crash = async () => {
      setImmediate(() => { throw new Error('out of reach'); });
      return new Promise(() => {});
    };
  `,
};

describe('event invocations', () => {
  test('the body is the event and the answer its value as JSON', () =>
    withFunction(HANDLERS, 'index.echo', async (fn) => {
      const { status, headers, json } = await fn.event({ statusCode: 404, 'ü': [1, null] });
      assert.deepEqual(
        [status, headers['content-type'], json],
        [200, 'application/json', { statusCode: 404, 'ü': [1, null] }],
      );
    }));

  test('an empty body is an empty object and one that is no JSON is refused', () =>
    withFunction(HANDLERS, 'index.echo', async (fn) => {
      assert.deepEqual((await fn.request('/', { method: 'POST', headers: { 'x-fn-invocation': 'event' } })).json, {});
      const broken = { method: 'POST', body: '{', headers: { 'x-fn-invocation': 'event' } };
      const { status, headers, json } = await fn.request('/', broken);
      assert.deepEqual(
        [status, json.errorType, headers['x-fn-function-error']],
        [400, 'Runtime.InvalidEvent', undefined],
      );
      assert.match(json.errorMessage, /not JSON/);
    }));

  test("the context has Lambda's properties", () =>
    withFunction(HANDLERS, 'index.describe', async (fn) => {
      const deadline = String(Date.now() + 5000);
      const headers = { 'x-request-id': 'r-9', traceparent: '00-ab-cd-01', 'x-fn-deadline-ms': deadline };
      const { json: context } = await fn.event({}, headers);
      assert.deepEqual(
        [
          context.functionName, context.functionVersion, context.memoryLimitInMB, context.awsRequestId,
          context.traceparent,
        ],
        ['greet', '7', '256', 'r-9', '00-ab-cd-01'],
      );
      assert.ok(context.remaining > 0 && context.remaining <= 5000, String(context.remaining));
      assert.equal((await fn.event({}, { 'x-fn-deadline-ms': '1' })).json.remaining, 0);
      assert.ok((await fn.event({})).json.remaining > 29_000);
    }));
});

describe('handlers', () => {
  for (const [entry, event, value] of [
    ['index.plain', { value: 3 }, 3],
    ['index.callback', { value: 4 }, 4],
    ['index.succeed', {}, 'succeeded'],
    ['index.nested.deeper.handler', {}, 'deep'],
  ]) {
    test(`answer in every style: ${entry}`, () =>
      withFunction(HANDLERS, entry, async (fn) => assert.equal((await fn.event(event)).json, value)));
  }

  const greet = {
    commonjs: "exports.handler = async () => 'ok';",
    module: "const value = await 'ok'; export const handler = async () => value;",
  };
  const dependency = { 'node_modules/dependency/index.js': "module.exports = async () => 'ok';" };
  for (const [files, entry] of [
    [{ 'index.mjs': greet.module }, 'index.handler'],
    [{ 'index.cjs': greet.commonjs }, 'index.handler'],
    [{ 'index.js': greet.module, 'package.json': '{"type":"module"}' }, 'index.handler'],
    [{ 'src/deep/main.js': greet.commonjs }, 'src/deep/main.handler'],
    [
      { 'package.json': '{"main":"lib/main.js"}', 'lib/main.js': greet.commonjs, 'lib/index.js': greet.commonjs },
      'lib.handler',
    ],
    [{ 'index.js': "exports.handler = require('dependency');", ...dependency }, 'index.handler'],
    [
      { 'index.mjs': "import value from 'dependency'; export default { handler: value };", ...dependency },
      'index.handler',
    ],
  ]) {
    test(`load from ${Object.keys(files).join(' ')}`, () =>
      withFunction(files, entry, async (fn) => assert.equal((await fn.event({})).json, 'ok')));
  }

  test('run at the same time', () =>
    withFunction(HANDLERS, 'index.meet', async (fn) => {
      const answers = await Promise.all([fn.event({}), fn.event({})]);
      assert.deepEqual(answers.map((answer) => answer.json), ['met', 'met']);
    }));

  test('that write are heard at once', () =>
    withFunction(HANDLERS, 'index.talk', async (fn) => {
      await fn.event({});
      const said = () => fn.output.includes('to stdout\n') && fn.output.includes('to stderr\n');
      assert.ok(await fn.until(said), fn.output);
    }));
});

describe('failures', () => {
  test("an exception is a 500 with type, message and the user's frames", () =>
    withFunction(HANDLERS, 'index.fail', async (fn) => {
      const { status, headers, json } = await fn.event('input');
      assert.deepEqual(
        [status, headers['x-fn-function-error'], json.errorType, json.errorMessage],
        [500, 'Unhandled', 'RangeError', 'bad input'],
      );
      assert.match(json.stackTrace[0], /^at inner /);
      assert.ok(await fn.until(() => fn.output.includes('RangeError: bad input')));
      assert.equal((await fn.event('text')).json.errorMessage, 'just text');
    }));

  test('one thrown synchronously or passed to the callback too', async () => {
    await withFunction(HANDLERS, 'index.synchronous', async (fn) =>
      assert.equal((await fn.event({})).json.errorMessage, 'at once'));
    await withFunction(HANDLERS, 'index.callback', async (fn) =>
      assert.equal((await fn.event({ fail: true })).json.errorType, 'TypeError'));
  });

  test('one outside every handler ends the process with its stack in the log', () =>
    withFunction(HANDLERS, 'index.crash', async (fn) => {
      await assert.rejects(fn.event({}), { code: 'ECONNRESET' });
      assert.equal(await fn.exited, 1);
      assert.match(fn.output, /Error: out of reach/);
    }));

  const broken = {
    'index.js': "require('missing-package');",
    'late.js': "throw new Error('too late');",
    'value.js': 'exports.handler = 3;',
  };
  for (const [entry, reason] of [
    ['index.handler', /Cannot find module 'missing-package'/],
    ['late.handler', /Error: too late/],
    ['absent.handler', /there is no absent\.js/],
    ['value.other', /does not export 'other'/],
    ['value.handler', /'handler' is not a function/],
    ['handler', /not of the form/],
  ]) {
    test(`a handler that cannot be had ends the process with code 1 and the reason: ${entry}`, async () => {
      const { code, output } = await Bootstrap.runToEnd(broken, entry);
      assert.equal(code, 1);
      assert.match(output, reason);
    });
  }
});
