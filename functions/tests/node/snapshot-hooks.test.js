// The platform's calls around a snapshot, and what makes copies of one snapshot differ.
'use strict';

const { test, describe, beforeEach, afterEach } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Bootstrap, RUNTIME } = require('./bootstrap-process');

const HOOKS = {
  'index.js': `
    const { beforeSnapshot, afterRestore } = require('rekindle');
    const seen = [];
    beforeSnapshot(() => seen.push('before 1'));
    beforeSnapshot(async () => { await null; seen.push('before 2'); });
    afterRestore(function third() { seen.push('after 1'); if (globalThis.failing) throw new Error('no database'); });
    rekindle.afterRestore(async () => seen.push('after 2'));
    const { random } = Math;
    exports.handler = async (event) => {
      if (event === 'fail') globalThis.failing = true;
      if (event === 'draw') return random();
      return seen;
    };
  `,
  'module.mjs': `
    import { afterRestore } from 'rekindle';
    const seen = [];
    afterRestore(() => seen.push('after'));
    export const handler = async () => seen;
  `,
};

describe('hooks', () => {
  let fn;
  beforeEach(async () => (fn = await Bootstrap.start(HOOKS)));
  afterEach(() => fn.stop());

  test('run in their order, sync and async', async () => {
    assert.equal((await fn.hook('before-snapshot')).status, 200);
    assert.equal((await fn.hook('after-restore')).status, 200);
    assert.deepEqual((await fn.event('')).json, ['before 2', 'before 1', 'after 1', 'after 2']);
  });

  test('that fail give the reason and stop the rest', async () => {
    await fn.event('fail');
    const { status, json } = await fn.hook('after-restore');
    assert.deepEqual(
      [status, json.errorType, json.errorMessage],
      [500, 'Runtime.HookFailed', "afterRestore hook 'third' failed: Error: no database"],
    );
    assert.deepEqual((await fn.event('')).json, ['after 1']);
  });

  test('answer to POST only, and the prefix is no wildcard', async () => {
    assert.equal((await fn.request('/.rekindle/after-restore')).status, 405);
    assert.equal((await fn.request('/.rekindle/other', { method: 'POST' })).status, 200);
  });
});

test('hooks of ES modules run too', async () => {
  const fn = await Bootstrap.start(HOOKS, 'module.handler');
  try {
    await fn.hook('after-restore');
    assert.deepEqual((await fn.event('')).json, ['after']);
  } finally {
    await fn.stop();
  }
});

test('worker threads reseed too, once the process was restored', async () => {
  const fn = await Bootstrap.start({
    'index.js': `
      const { Worker } = require('node:worker_threads');
      const worker = new Worker(\`
        const crypto = require('node:crypto');
        const { randomUUID } = crypto;
        require('node:worker_threads').parentPort.on('message', ({ byte }) => {
          // With the kernel's bytes replaced, a generator that was seeded anew begins with the same number each time.
          if (byte !== undefined) {
            require('node:fs').readSync = (fd, buffer, at, size) => (buffer.fill(byte, at, at + size), size);
          }
          require('node:worker_threads').parentPort.postMessage([Math.random(), randomUUID().length]);
        });
      \`, { eval: true });
      exports.handler = (event) => new Promise((done) => { worker.once('message', done); worker.postMessage(event); });
    `,
  });
  try {
    const draw = async (event) => {
      const { json } = await fn.event(event);
      assert.equal(json[1], 36);
      return json[0];
    };
    const before = await draw({ byte: 7 });
    await fn.hook('after-restore');
    const first = await draw({});
    const second = await draw({});
    await fn.hook('after-restore');
    assert.equal(await draw({}), first, 'seeded anew');
    assert.equal(new Set([before, first, second]).size, 3);
  } finally {
    await fn.stop();
  }
});

test('a program without the runtime reseeds through the module', () => {
  const script = `
    const { random } = Math;
    try {
      require(${JSON.stringify(path.join(RUNTIME, 'rekindle'))}).reseed();
    } catch (error) { console.log(error.message); }
    console.log(Math.random !== random);
  `;
  const { stdout, stderr } = spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' });
  // The addon is built into the root filesystem alone.
  assert.equal(stdout, 'rekindle.reseed could not reach openssl\ntrue\n', stderr);
});

describe('random numbers', () => {
  const random = path.join(RUNTIME, 'lib/random.js');
  const run = (script) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' });
    assert.equal(status, 0, stderr);
    return stdout.trim();
  };

  test('of Math.random are even over [0, 1)', () => {
    const counts = JSON.parse(run(`
      require(${JSON.stringify(random)}).install();
      const counts = Array(16).fill(0);
      for (let i = 0; i < 160000; i++) {
        const x = Math.random();
        if (!(x >= 0 && x < 1)) process.exit(1);
        counts[Math.floor(x * 16)]++;
      }
      console.log(JSON.stringify(counts));
    `));
    // 10000 expected in each with a deviation of 97; a sixteenth off by 600 is no chance.
    assert.ok(counts.every((count) => Math.abs(count - 10000) < 600), String(counts));
  });

  test('of Math.random are drawn anew by a reseed, also through an old reference', () => {
    // The seed comes from the kernel file alone: with that replaced, equal bytes give equal numbers and other bytes
    // others.
    const output = run(`
      const fs = require('node:fs');
      let byte = 1;
      // Loaded before, as some versions of Node.js load modules by that function.
      const r = require(${JSON.stringify(random)});
      fs.readSync = (fd, buffer, offset, length) => { buffer.fill(byte, offset, offset + length); return length; };
      r.install();
      const { random } = Math;
      const draw = () => [random(), random()];
      const first = draw();
      r.reseed(); const again = draw();
      byte = 2;
      r.reseed(); const other = draw();
      console.log(JSON.stringify([first, again, other]));
    `);
    const [first, again, other] = JSON.parse(output);
    assert.deepEqual(first, again);
    assert.notDeepEqual(first, other);
  });

  test('of OpenSSL can be reseeded through reseed.node', () => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'reseed-'));
    try {
      // In a root filesystem it is there, and no compiler.
      let addon = '/opt/rekindle/node/reseed.node';
      if (!fs.existsSync(addon)) {
        addon = path.join(folder, 'reseed.node');
        const source = path.resolve(RUNTIME, '../../../../reseed.c');
        const options = ['-shared', '-fPIC', '-O2', '-Wall', '-Werror', '-nostdlib', '-o', addon, source];
        const { status, stderr } = spawnSync('cc', options, { encoding: 'utf8' });
        assert.equal(status, 0, stderr);
      }
      assert.equal(run(`
        const { add } = require(${JSON.stringify(addon)});
        add(Buffer.from('entropy'));
        for (const wrong of [undefined, 'text', Buffer.alloc(0), Buffer.alloc(5000)]) {
          try { add(wrong); console.log('taken'); process.exit(0); } catch (error) {
            if (!(error instanceof TypeError)) throw error;
          }
        }
        console.log(require('node:crypto').randomBytes(8).length);
      `), '8');
    } finally {
      fs.rmSync(folder, { recursive: true });
    }
  });
});
