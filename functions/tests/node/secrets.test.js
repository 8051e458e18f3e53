// Secrets that come, change and go as files, and are environment variables.
'use strict';

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const vm = require('node:vm');

const FILE = path.join(__dirname, '../../runtimes/node/overlay/opt/rekindle/node/lib/secrets.js');

// The module with another folder.
function inFolder(folder) {
  const code = fs.readFileSync(FILE, 'utf8').replace("'/run/secrets'", JSON.stringify(folder));
  const module = { exports: {} };
  vm.runInThisContext(`(function (require, module) {${code}\n})`)(require, module);
  return module.exports;
}

function write(folder, files) {
  for (const name of fs.readdirSync(folder)) if (!(name in files)) fs.rmSync(path.join(folder, name));
  for (const [name, value] of Object.entries({ ...files, '.changed': '' })) {
    fs.writeFileSync(path.join(folder, '.new'), value);
    fs.renameSync(path.join(folder, '.new'), path.join(folder, name));
  }
}

test('secrets are what the files say after each change', (t) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'secrets-'));
  t.after(() => fs.rmSync(folder, { recursive: true }));
  const secrets = inFolder(folder);
  secrets.begin();
  assert.equal(process.env.ONE, undefined);
  write(folder, { ONE: '1', TWO: '2\n', BINARY: Buffer.from([0xff, 0]) });
  secrets.refresh();
  assert.deepEqual([process.env.ONE, process.env.TWO, process.env.BINARY], ['1', '2\n', undefined]);
  write(folder, { ONE: 'another' });
  secrets.refresh();
  assert.deepEqual([process.env.ONE, process.env.TWO], ['another', undefined]);
});

test('secrets are not looked for where there is no folder', (t) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'secrets-'));
  t.after(() => fs.rmSync(folder, { recursive: true }));
  const secrets = inFolder(path.join(folder, 'none'));
  secrets.begin();
  write(folder, { NOWHERE: '1' });
  secrets.refresh();
  assert.equal(process.env.NOWHERE, undefined);
});
