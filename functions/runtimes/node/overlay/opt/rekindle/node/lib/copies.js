// Random numbers that are drawn ahead, which copies of a snapshot must not share. Loaded by `node --require`, or
// `bun --preload`, before anything else, in the main thread and in every worker thread.
//
//   node:crypto           draws UUIDs and integers ahead. Where `copies` has become another number the process is
//                         another copy, and they are drawn empty first. In Bun all short draws are from what was drawn
//                         ahead.
//   npm's uuid, nanoid,   fill a pool and draw from it by themselves, as does the /dev/urandom of Emscripten's
//   uid, id128            programs. Each thread lists its pools, by how they begin, and in each copy they are filled
//                         anew before it runs.
//   others of npm         see libraries.js.
//
// The platform finds the number and the lists in memory by what they begin with; generators it finds without help
// (docs/reference/runtime-contract.md).
'use strict';

require('./processors');
const libraries = require('./libraries');
const crypto = require('node:crypto');
const { syncBuiltinESMExports } = require('node:module');
const { getEnvironmentData, setEnvironmentData } = require('node:worker_threads');

const COPIES = [0xd6f3a95b, 0x8ce24d17, 0xb1a07e3c, 0xe94fc285];
const POOLS = [0xa47ce519, 0xf2d80b63, 0x9be63cd1, 0xc85f972e];
const SHARED = 'rekindle.copies';
const UUIDS_AHEAD = 128; // kBatchSize in lib/internal/crypto/random.js
const UUIDS_AHEAD_IN_BUN = 1024; // more than it has
const INTEGERS_AHEAD = 1024; // randomCache there, 6 bytes an integer
const POOLS_MAX = 64;
const HEADER = 24; // what a list begins with, the number of its pools
const ENTRY = 24; // of a pool: its first 16 bytes, its length
const POOL_MAX = 0xffff;
const POOL_OF_ID128 = 4000;
const POOL_OF_UID = 4096; // of @lukeed/uuid too
const POOL_OF_EMSCRIPTEN = 1024;
const LIBRARIES = /[\\/]node_modules[\\/](@lukeed[\\/]uuid|id128|nanoid|uid|uuid)[\\/]/;
const EMSCRIPTEN = /\b(initRandomFill|randomFill)\b/; // functions of what it writes

function shared() {
  const memory = new SharedArrayBuffer(32);
  new Uint32Array(memory).set(COPIES);
  setEnvironmentData(SHARED, memory);
  return memory;
}

// Another number in each copy, the same in all threads.
const copies = new Int32Array(getEnvironmentData(SHARED) ?? shared(), 16, 1);

/** The function, before which what was drawn ahead is drawn empty in a process that has become another copy. */
function unlike(draw, empty) {
  return function (...parameters) {
    empty();
    return draw.apply(this, parameters);
  };
}

/** The function that calls `change` in a process that has become another copy, once. */
function once(change) {
  let seen = copies[0];
  return () => {
    if (copies[0] === seen) return;
    seen = copies[0];
    change();
  };
}

function emptied(count, draw) {
  return once(() => {
    for (let i = 0; i < count; i++) draw();
  });
}

const list = new ArrayBuffer(HEADER + POOLS_MAX * ENTRY);
new Uint32Array(list).set(POOLS);
const entries = new Map(); // the place in the list of a pool, or of where a library draws its pools

/** The function that fills a buffer, which is listed where it is a library's pool. */
function listed(fill) {
  return function (buffer, ...more) {
    const filled = fill.call(this, buffer, ...more);
    const { byteLength } = buffer;
    const fits = byteLength % 128 === 0 || byteLength === POOL_OF_ID128;
    if (more.length === 0 && fits && byteLength > 0 && byteLength <= POOL_MAX) {
      if (entries.has(buffer) || (entries.size < POOLS_MAX && isPool(buffer))) note(buffer, buffer);
    }
    return filled;
  };
}

/** The function that makes a buffer, which is listed in the place of the one before where it is a library's pool. */
function listedMade(make) {
  return function (size, callback) {
    if (callback !== undefined || size !== POOL_OF_UID) return make.apply(this, arguments);
    const buffer = make.call(this, size);
    const line = stack().split('\n').find((line) => LIBRARIES.test(line));
    if (line !== undefined) note(buffer, line);
    return buffer;
  };
}

function isPool({ buffer, byteLength }) {
  const callers = stack();
  // One that is a part of more may be a program's memory, where it may have asked for a key.
  const isEmscripten =
    byteLength === POOL_OF_EMSCRIPTEN && buffer.byteLength === byteLength && EMSCRIPTEN.test(callers);
  return isEmscripten || LIBRARIES.test(callers);
}

function stack() {
  return String(new Error().stack);
}

function note(buffer, key) {
  let entry = entries.get(key);
  if (entry === undefined) {
    if (entries.size === POOLS_MAX) return;
    entry = HEADER + entries.size * ENTRY;
    entries.set(key, entry);
  }
  new Uint8Array(list, entry, 16).set(new Uint8Array(buffer.buffer, buffer.byteOffset, 16));
  new BigUint64Array(list, entry + 16, 1)[0] = BigInt(buffer.byteLength);
  new Uint32Array(list, 16, 1)[0] = entries.size;
}

const isBun = process.versions.bun !== undefined;
const { randomUUID, randomInt } = crypto;
const emptyUuids = emptied(isBun ? UUIDS_AHEAD_IN_BUN : UUIDS_AHEAD, () => randomUUID());
const emptyIntegers = isBun ? emptyUuids : emptied(INTEGERS_AHEAD, () => randomInt(2));
crypto.randomUUID = unlike(randomUUID, emptyUuids);
crypto.randomInt = unlike(randomInt, emptyIntegers);
crypto.randomFillSync = listed(isBun ? unlike(crypto.randomFillSync, emptyUuids) : crypto.randomFillSync);
crypto.randomBytes = listedMade(crypto.randomBytes);
const web = isBun ? globalThis.crypto : Object.getPrototypeOf(crypto.webcrypto);
web.randomUUID = unlike(web.randomUUID, emptyUuids);
web.getRandomValues = listed(isBun ? unlike(web.getRandomValues, emptyUuids) : web.getRandomValues);
syncBuiltinESMExports();
if (!isBun) libraries.watch(crypto, once);

module.exports = { copies, list };
