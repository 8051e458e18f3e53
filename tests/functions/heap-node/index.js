// V8's heap under stress: objects, strings and buffers from before the snapshot among new ones, through many
// collections.
'use strict';

const OBJECTS = 40000;
const ROUNDS = 400000;

let state = 1;
function next(end) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state % end;
}

function make() {
  const seed = next(1 << 30);
  const length = next(100) === 0 ? next(100000) + 1 : next(300) + 1;
  const buffer = next(4) === 0 ? Buffer.allocUnsafe(length) : null;
  if (buffer) for (let i = 0; i < length; i++) buffer[i] = (seed + i * 7) & 255;
  const numbers = Array.from({ length: next(20) }, (_, i) => seed + i + 0.5);
  return { seed, length, buffer, numbers, text: `${seed}:${'x'.repeat(next(50))}`, [`field${seed % 50}`]: seed };
}

function isWhole(object) {
  const { seed, length, buffer, numbers, text } = object;
  if (object[`field${seed % 50}`] !== seed || !text.startsWith(`${seed}:`)) return false;
  if (numbers.some((number, i) => number !== seed + i + 0.5)) return false;
  if (!buffer) return true;
  if (buffer.length !== length) return false;
  for (let i = 0; i < length; i++) if (buffer[i] !== ((seed + i * 7) & 255)) return false;
  return true;
}

const heap = new Map();
for (let at = 0; at < OBJECTS; at++) heap.set(at, make());

exports.handler = async () => {
  for (let round = 0; round < ROUNDS; round++) {
    const at = next(OBJECTS);
    if (!isWhole(heap.get(at))) return { statusCode: 500, body: `object ${at} has changed in round ${round}` };
    heap.delete(at);
    heap.set(at, make());
  }
  for (const [at, object] of heap) {
    if (!isWhole(object)) return { statusCode: 500, body: `object ${at} has changed in the end` };
  }
  return { statusCode: 200, body: 'allocator: ok' };
};
