// A function that is loaded after its bootstrap has begun to serve.
'use strict';

const { test, describe } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { Bootstrap } = require('./bootstrap-process');

const FILES = {
  'index.js': `
    exports.handler = async (event, context) => ({
      name: context.functionName, environment: Object.keys(process.env).sort(),
    });
  `,
  'module.mjs': `export const handler = async () => 'module';`,
  'broken.js': `require('nothing-of-this-name');`,
};
const LATER = { FN_LOAD: 'later', ONLY_BEFORE: '1' };

function load(fn, entry, more = {}) {
  const env = { FN_HANDLER: entry, FN_NAME: 'late', ...more };
  return fn.request('/.rekindle/load', { method: 'POST', body: JSON.stringify({ env }) });
}

async function later(files, body) {
  const fn = await Bootstrap.start(files, 'index.handler', LATER);
  try {
    await body(fn);
  } finally {
    await fn.stop();
  }
}

describe('loading later', () => {
  test('serves no function until one is loaded', () => later(FILES, async (fn) => {
    const early = await fn.event({});
    assert.deepEqual([early.status, early.json.errorType], [503, 'Runtime.NotLoaded']);
    assert.equal((await fn.hook('before-snapshot')).status, 200);
    assert.equal((await fn.hook('after-restore')).status, 200);
    assert.equal((await load(fn, 'index.handler', { OWN: '2' })).status, 200);
    assert.deepEqual((await fn.event({})).json, { name: 'late', environment: ['FN_HANDLER', 'FN_NAME', 'OWN'] });
    assert.equal((await load(fn, 'index.handler')).status, 409);
  }));

  test('loads ES modules, and files that came after it began', () => later(FILES, async (fn) => {
    fs.writeFileSync(path.join(fn.folder, 'late.mjs'), `export const handler = async () => 'late';`);
    assert.equal((await load(fn, 'late.handler')).status, 200);
    assert.equal((await fn.event({})).json, 'late');
  }));

  test('ends where the function cannot be loaded', async () => {
    for (const [entry, reason] of [
      ['missing.handler', 'there is no missing.js'],
      ['broken.handler', 'nothing-of-this-name'],
    ]) {
      await later(FILES, async (fn) => {
        await assert.rejects(load(fn, entry));
        await fn.exited;
        assert.equal(fn.exitCode, 1);
        assert.match(fn.output, new RegExp(reason));
      });
    }
  });

  test('says what it cannot read', () => later(FILES, async (fn) => {
    for (const body of ['', '{', '[]', '{"env": []}', '{"env": {"A": 1}}']) {
      assert.equal((await fn.request('/.rekindle/load', { method: 'POST', body })).status, 400, body);
    }
    assert.equal((await load(fn, 'index.handler')).status, 200);
  }));

  test('is nothing for a function that was loaded first', async () => {
    const fn = await Bootstrap.start(FILES);
    assert.equal((await load(fn, 'index.handler')).status, 409);
    await fn.stop();
  });
});
