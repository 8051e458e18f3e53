// What a function may use of the platform: hooks around snapshots. Also there as the global `rekindle`.
//
//   const rekindle = require('rekindle');          or: import { beforeSnapshot, afterRestore } from 'rekindle';
//   rekindle.beforeSnapshot(async () => { ... });
//   rekindle.afterRestore(() => { ... });
//
// Before a snapshot hooks run in reverse order of registration, after a restore in order, one at a time; a promise is
// awaited. A hook that throws fails the snapshot or the restore.
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

// For the runtime alone.
Object.defineProperty(exports, Symbol.for('rekindle.hooks'), { value: hooks });
