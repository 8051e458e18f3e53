// Random numbers that differ between the copies of one snapshot.
//
// Three kinds of state would repeat in every restored instance:
//   Math.random            V8 offers no way to seed it, so it is replaced by a generator that can be seeded (xoshiro128**).
//   OpenSSL's generator    reseeded from the kernel through reseed.node (reseed.c), which also covers TLS. It is one for all threads.
//   caches of node:crypto  randomUUID and randomInt draw ahead; drawing them empty makes them fill from the reseeded generator.
//
// Generator and caches exist once a thread. The main thread reseeds its own when it is told of a restore; a worker thread, which
// loads this file by the process's `--require`, does so at its next draw, as it sees the number of restores grow.
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const { syncBuiltinESMExports } = require('node:module');
const path = require('node:path');
const { isMainThread, getEnvironmentData, setEnvironmentData } = require('node:worker_threads');

const UUIDS_AHEAD = 128; // kBatchSize in lib/internal/crypto/random.js
const INTEGERS_AHEAD = 1024; // randomCache there, 6 bytes an integer
const SHARED = 'rekindle.restores';

// How often the process was restored (or rehearsed it), shared by all its threads.
const restores = getEnvironmentData(SHARED) ?? new Int32Array(new SharedArrayBuffer(4));
if (isMainThread) setEnvironmentData(SHARED, restores);
let seen = restores[0];
let installed = false;

const { randomUUID, randomInt } = crypto;
const state = new Uint32Array(4);

function next() {
  let s0 = state[0], s1 = state[1], s2 = state[2], s3 = state[3];
  const product = Math.imul(s1, 5);
  const result = Math.imul((product << 7) | (product >>> 25), 9) >>> 0;
  const shifted = s1 << 9;
  s2 ^= s0;
  s3 ^= s1;
  s1 ^= s2;
  s0 ^= s3;
  s2 ^= shifted;
  s3 = (s3 << 11) | (s3 >>> 21);
  state[0] = s0;
  state[1] = s1;
  state[2] = s2;
  state[3] = s3;
  return result;
}

/** A number in [0, 1) of 53 random bits. Not for secrets, as ever. */
function random() {
  if (restores[0] !== seen) renew();
  const high = next() >>> 5; // 27 bits
  const low = next() >>> 6; // 26 bits
  return (high * 67108864 + low) / 9007199254740992;
}

/** `size` bytes from the kernel, past every generator in this process. */
function kernelBytes(size) {
  const bytes = Buffer.alloc(size);
  const device = fs.openSync('/dev/urandom', 'r');
  try {
    for (let filled = 0; filled < size; ) {
      const got = fs.readSync(device, bytes, filled, size - filled, null);
      if (got === 0) throw new Error('/dev/urandom ended');
      filled += got;
    }
  } finally {
    fs.closeSync(device);
  }
  return bytes;
}

function seed() {
  do {
    const bytes = kernelBytes(16);
    for (let i = 0; i < 4; i++) state[i] = bytes.readUInt32LE(i * 4);
  } while (state.every((word) => word === 0)); // the one state xoshiro never leaves
}

let openssl;
try {
  openssl = require(path.join(__dirname, '..', 'reseed.node'));
} catch {
  openssl = undefined; // Told in the answer of every after-restore.
}

/** Gives this thread's generator a new seed, and draws its caches empty. */
function renew() {
  seen = restores[0];
  seed();
  for (let i = 0; i < UUIDS_AHEAD; i++) randomUUID();
  for (let i = 0; i < INTEGERS_AHEAD; i++) randomInt(2);
}

/** Puts the seedable generator in the place of Math.random. */
function install() {
  if (installed) return;
  installed = true;
  seed();
  Object.defineProperty(Math, 'random', { value: random, writable: true, enumerable: false, configurable: true });
  if (isMainThread) return;
  crypto.randomUUID = current(randomUUID);
  crypto.randomInt = current(randomInt);
  const web = Object.getPrototypeOf(crypto.webcrypto);
  web.randomUUID = current(web.randomUUID);
  syncBuiltinESMExports();
}

/** The same function, which looks first whether the process was restored. */
function current(draw) {
  return function (...parameters) {
    if (restores[0] !== seen) renew();
    return draw.apply(this, parameters);
  };
}

/** Gives every generator new entropy; for the main thread. Returns the names of those it could not reach. */
function reseed() {
  install();
  if (openssl !== undefined) openssl.add(kernelBytes(48));
  // After OpenSSL, from which the caches of all threads are filled.
  Atomics.add(restores, 0, 1);
  renew();
  return openssl === undefined ? ['openssl'] : [];
}

module.exports = { install, reseed };
