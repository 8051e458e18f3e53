// What a function may use of the platform: hooks around snapshots, and invocations of other functions. Also there as
// the global `rekindle`.
//
//   const rekindle = require('rekindle');          or: import { beforeSnapshot, afterRestore } from 'rekindle';
//   rekindle.beforeSnapshot(async () => { ... });
//   rekindle.afterRestore(() => { ... });
//
// Before a snapshot hooks run in reverse order of registration, after a restore in order, one at a time; a promise is
// awaited. A hook that throws fails the snapshot or the restore.
//
// These hooks are for the runtime `node`. An `http` function has paths in fn.toml in their place; what the runtime
// reseeds by itself, such a program reseeds by calling `rekindle.reseed()` there, and once when it starts.
'use strict';

const hooks = { beforeSnapshot: [], afterRestore: [] };

function register(kind, hook) {
  if (typeof hook !== 'function') throw new TypeError(`rekindle.${kind} takes a function, not ${typeof hook}`);
  hooks[kind].push(hook);
  return hook;
}

/** Registers `hook` to run once before the process is checkpointed; returns it. */
exports.beforeSnapshot = (hook) => register('beforeSnapshot', hook);

/** Registers `hook` to run in every restored instance before its first request; returns it. */
exports.afterRestore = (hook) => register('afterRestore', hook);

/**
 * Puts a generator that can be seeded in the place of Math.random, and gives it and OpenSSL's new entropy. The runtime
 * `node` does so before the first after-restore hook. For the main thread; worker threads follow if they were started
 * with `--require /opt/rekindle/node/lib/preload.js`.
 */
exports.reseed = () => {
  const missed = require('../lib/random').reseed();
  if (missed.length > 0) throw new Error(`rekindle.reseed could not reach ${missed.join(', ')}`);
};

/**
 * The result of another function of the same namespace for `payload`, as JSON each. Rejects with an InvokeError. A
 * handler's context has it too, and knows how much time is left.
 */
exports.invoke = (name, payload, options) => require('../lib/invoke').now(name, payload, options);

/** Has another function of the same namespace run later with `payload`; resolves to the id of that invocation. */
exports.invokeAsync = (name, payload, options) => require('../lib/invoke').later(name, payload, options);

Object.defineProperty(exports, 'InvokeError', { enumerable: true, get: () => require('../lib/invoke').InvokeError });

// For the runtime alone.
Object.defineProperty(exports, Symbol.for('rekindle.hooks'), { value: hooks });
