// Around snapshots: runs the user's hooks, makes memory worth keeping, and makes restored copies differ where they
// must.
'use strict';

const v8 = require('node:v8');
const vm = require('node:vm');
const rekindle = require('../rekindle');
const { reseed } = require('./random');
const secrets = require('./secrets');

// After so many runs V8 has compiled what a reseed runs: restored copies, which start from that code, then take 0.3 ms
// for it instead of 1 ms.
const REHEARSALS = 10;

// What `reseed` is for, as the platform calls it.
const RESEEDS = ['openssl', 'copies'];

const hooks = rekindle[Symbol.for('rekindle.hooks')];

/** A hook threw; the message names it and says what it threw. */
class HookFailed extends Error {}

/** POST /.rekindle/before-snapshot; resolves to the answer's body. */
async function beforeSnapshot() {
  await run([...hooks.beforeSnapshot].reverse(), 'beforeSnapshot');
  for (let i = 0; i < REHEARSALS; i++) reseed();
  collectGarbage();
  // Where nothing is left for it the platform does not call the hook.
  return { afterRestore: { hooks: hooks.afterRestore.length, reseeds: RESEEDS } };
}

/** POST /.rekindle/after-restore; resolves to the answer's body. */
async function afterRestore(_body, request) {
  // What the platform has reseeded before this process ran.
  const reseeded = (request.headers['x-fn-reseeded'] ?? '').split(',');
  const notReseeded = RESEEDS.every((kind) => reseeded.includes(kind)) ? [] : reseed();
  secrets.refresh();
  await run(hooks.afterRestore, 'afterRestore');
  return notReseeded.length > 0 ? { notReseeded } : {};
}

// The collector is within reach only of contexts made while this flag is set.
function collectGarbage() {
  if (typeof globalThis.gc === 'function') return globalThis.gc();
  v8.setFlagsFromString('--expose-gc');
  try {
    vm.runInNewContext('gc')();
  } finally {
    v8.setFlagsFromString('--no-expose-gc');
  }
}

async function run(list, kind) {
  for (const hook of list) {
    try {
      await hook();
    } catch (error) {
      console.error(error);
      const what = `${error?.name ?? typeof error}: ${error?.message ?? error}`;
      throw new HookFailed(`${kind} hook '${hook.name || 'anonymous'}' failed: ${what}`);
    }
  }
}

module.exports = { beforeSnapshot, afterRestore, HookFailed };
