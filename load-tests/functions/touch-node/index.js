// A function with weight: usual imports and TOUCH_MIB MiB of touched memory, of which a request reads only a little.

const crypto = require('crypto');
require('http');
require('https');
require('stream');
require('url');
require('zlib');

const PAGE = 4096;
const SIZE = Number(process.env.TOUCH_MIB || 64) * 1024 * 1024;

// Every page differs, and compresses about as well as ordinary heap data: a hash at its start, small integers after it.
const filled = () => {
  const buffer = Buffer.allocUnsafe(SIZE);
  const rest = Buffer.from(Array.from({ length: PAGE - 32 }, (_, at) => at % 64));
  const number = Buffer.alloc(8);
  for (let start = 0; start < SIZE; start += PAGE) {
    number.writeUInt32LE(start);
    crypto.createHash('sha256').update(number).digest().copy(buffer, start);
    rest.copy(buffer, start + 32);
  }
  return buffer;
};

const BUFFER = filled();

exports.handler = async () => {
  const page = crypto.randomInt(SIZE / PAGE) * PAGE;
  const body = JSON.stringify({ page, first: BUFFER[page], at: new Date().toISOString() });
  return { statusCode: 200, headers: { 'content-type': 'application/json' }, body };
};
