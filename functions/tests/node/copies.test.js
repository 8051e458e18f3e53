// What npm's libraries draw ahead, or from generators of their own, in copies of one process. The libraries here are as
// short as can be, and draw as those do whose names they have.
'use strict';

const { test, describe, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { RUNTIME } = require('./bootstrap-process');

const COPIES = path.join(RUNTIME, 'lib/copies.js');

const SECURE = `
  const { random } = require('@lukeed/csprng');
  let at = 4096, pool;
  exports.draw = () => {
    if (at + 16 > 4096) { pool = random(4096); at = 0; }
    at += 16;
    return pool.toString('hex', at - 16, at);
  };
  exports.pool = () => pool;
`;
const RC4 = `
  function SecureRandom() {}
  let count = 0;
  SecureRandom.prototype.nextBytes = (bytes) => { for (let i = 0; i < bytes.length; ++i) bytes[i] = count++ & 255; };
  exports.SecureRandom = SecureRandom;
  exports.key = () => {
    const bytes = new Array(32);
    new SecureRandom().nextBytes(bytes);
    return Buffer.from(bytes).toString('hex');
  };
`;
const LIBRARIES = {
  '@lukeed/csprng/index.js':
    `const { randomBytes } = require('crypto'); exports.random = (length) => randomBytes(length);`,
  '@lukeed/uuid/secure/index.js': SECURE,
  'uid/secure/index.js': SECURE,
  'id128/index.js': `
    const pool = new Uint8Array(4000);
    exports.draw = () => require('crypto').randomFillSync(pool);
    exports.pool = () => pool;
  `,
  'uuid/index.js': `
    const pool = new Uint8Array(256);
    exports.draw = () => require('crypto').randomFillSync(pool);
    exports.pool = () => pool;
  `,
  'wasm-database/index.js': `
    var initRandomFill = () => { var e = require('node:crypto'); return (r) => (e.randomFillSync(r), 0); };
    var randomFill = (e) => (randomFill = initRandomFill())(e);
    const memory = new Uint8Array(1 << 16);
    var pool = new Uint8Array(1024), left = 0;
    exports.draw = () => (left || (randomFill(pool), (left = pool.byteLength)), pool[--left]);
    exports.pool = () => pool;
    exports.part = () => {
      let fill = initRandomFill();
      function randomFill(view) { fill(view); }
      randomFill(memory.subarray(0, 1024));
    };
  `,
  'jsrsasign/lib/jsrsasign.js': RC4,
  'jsbn/index.js': RC4,
  'sjcl/sjcl.js': `
    let count = 0;
    const random = {
      randomWords(length) {
        if (this !== random) throw new Error('of what?');
        return Array.from({ length }, () => count++);
      },
    };
    module.exports = { random };
  `,
  'hyperid/hyperid.js': `
    const { randomUUID } = require('crypto');
    function hyperid({ startFrom = 0 } = {}) {
      generate.uuid = randomUUID();
      generate.decode = decode;
      let count = startFrom;
      return generate;
      function generate() { return generate.uuid + '/' + count++; }
    }
    function decode(id) { return { uuid: id.split('/')[0], count: Number(id.split('/')[1]) }; }
    module.exports = hyperid;
    module.exports.decode = decode;
  `,
};

describe('libraries of npm', () => {
  let folder;
  before(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'copies-'));
    for (const [name, text] of Object.entries(LIBRARIES)) {
      const file = path.join(folder, 'node_modules', name);
      fs.mkdirSync(path.dirname(file), { recursive: true });
      fs.writeFileSync(file, text);
    }
    const manifests = { jsrsasign: 'lib/jsrsasign.js', sjcl: 'sjcl.js', hyperid: 'hyperid.js' };
    for (const [name, main] of Object.entries(manifests)) {
      fs.writeFileSync(path.join(folder, 'node_modules', name, 'package.json'), JSON.stringify({ name, main }));
    }
  });
  after(() => fs.rmSync(folder, { recursive: true }));

  // What the script, a module in the folder, gives to `tell`. `listed()` are the pools that the platform fills anew.
  const run = (script) => {
    const file = path.join(folder, 'script.mjs');
    const head = `
      import { createRequire } from 'node:module';
      const require = createRequire(import.meta.url);
      const { copies, list } = require(${JSON.stringify(COPIES)});
      const listed = () => Array.from({ length: new Uint32Array(list, 16, 1)[0] }, (_, i) =>
        [Buffer.from(list, 24 + i * 24, 16).toString('hex'), Number(new BigUint64Array(list, 40 + i * 24, 1)[0])]);
      const begin = (pool) => [Buffer.from(pool.buffer, pool.byteOffset, 16).toString('hex'), pool.byteLength];
      const tell = (what) => console.log(JSON.stringify(what));
    `;
    fs.writeFileSync(file, head + script);
    const { status, stdout, stderr } = spawnSync(process.execPath, ['--require', COPIES, file], { encoding: 'utf8' });
    assert.equal(status, 0, stderr);
    return JSON.parse(stdout);
  };

  for (const name of ['@lukeed/uuid/secure/index.js', 'uid/secure/index.js', 'id128', 'uuid', 'wasm-database']) {
    test(`list the pool of ${name}, also once it was drawn anew`, () => {
      const { first, later } = run(`
        const library = require('${name}');
        library.draw();
        const first = [listed(), [begin(library.pool())]];
        // 100 pools are more than a list holds.
        for (let i = 0; i < 100 * 1024; i++) library.draw();
        tell({ first, later: [listed(), [begin(library.pool())]] });
      `);
      assert.deepEqual(...first);
      assert.deepEqual(...later);
      assert.notDeepEqual(first[0], later[0]);
    });
  }

  test('list nothing of a program, nor of the memory of WebAssembly', () => {
    const pools = run(`
      const crypto = require('node:crypto');
      crypto.randomBytes(4096);
      crypto.randomFillSync(new Uint8Array(4000));
      crypto.randomFillSync(new Uint8Array(1024));
      const database = require('wasm-database');
      database.part();
      tell(listed());
    `);
    assert.deepEqual(pools, []);
  });

  test('randomBytes calls back', () => {
    assert.equal(run(`require('node:crypto').randomBytes(4096, (error, bytes) => tell(bytes.length));`), 4096);
  });

  for (const name of ['jsrsasign', 'jsbn']) {
    test(`mix the keys of ${name}`, () => {
      // Its own generator is at the same place each time.
      const script = `import library from '${name}'; tell([library.key(), library.key().length]);`;
      const [first, second] = [run(script), run(script)];
      assert.equal(first[1], 64);
      assert.notEqual(first[0], second[0]);
    });
  }

  test('mix the words of sjcl', () => {
    const script = `import sjcl from 'sjcl'; tell([sjcl.random.randomWords(4), sjcl.random.randomWords(0)]);`;
    const [first, second] = [run(script), run(script)];
    assert.equal(first[0].length, 4);
    assert.ok(first[0].every((word) => word === (word | 0)));
    assert.deepEqual(first[1], []);
    assert.notDeepEqual(first[0], second[0]);
  });

  test('begin anew with hyperid', () => {
    const { ids, uuids, decoded } = run(`
      import hyperid from 'hyperid';
      const next = hyperid({ startFrom: 7 });
      const uuids = [next.uuid];
      const ids = [next(), next()];
      copies[0]++;
      ids.push(next(), next());
      uuids.push(next.uuid);
      tell({ ids, uuids, decoded: [hyperid.decode(ids[2]), next.decode(ids[3])] });
    `);
    assert.notEqual(uuids[0], uuids[1]);
    assert.deepEqual(ids, [`${uuids[0]}/7`, `${uuids[0]}/8`, `${uuids[1]}/7`, `${uuids[1]}/8`]);
    assert.deepEqual(decoded, [{ uuid: uuids[1], count: 7 }, { uuid: uuids[1], count: 8 }]);
  });
});
