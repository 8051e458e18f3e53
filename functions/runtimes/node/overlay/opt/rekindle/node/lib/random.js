// Random numbers that differ between the copies of one snapshot, where the platform does not see to it by itself.
//
//   Math.random            V8 offers no way to seed it, so it is replaced by a generator that can be seeded
//                          (xoshiro128**).
//   OpenSSL's generator    reseeded from the kernel through reseed.node (reseed.c), which also covers TLS. It is one
//                          for all threads.
//   what is drawn ahead    see copies.js.
//
// Each thread has a generator of its own. It is seeded at its next draw once the process has become another copy:
// `copies` is another number then, which the platform writes before a copy runs, and `reseed` where it has not.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { copies } = require('./copies');

let seen = copies[0];
let installed = false;
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
  if (copies[0] !== seen) {
    seen = copies[0];
    seed();
  }
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

/** Puts the seedable generator in the place of Math.random. */
function install() {
  if (installed) return;
  installed = true;
  seed();
  Object.defineProperty(Math, 'random', { value: random, writable: true, enumerable: false, configurable: true });
}

/** Gives every generator new entropy. Returns the names of those it could not reach. */
function reseed() {
  install();
  if (openssl !== undefined) openssl.add(kernelBytes(48));
  // After OpenSSL, from which the caches of all threads are filled.
  Atomics.add(copies, 0, 1);
  return openssl === undefined ? ['openssl'] : [];
}

module.exports = { install, reseed };
