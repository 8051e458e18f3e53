// Secrets as environment variables: what the files of the platform say, at the start and whenever they have changed.
//
// The files come into an instance after its restore, so nothing of them is in a snapshot. A function without secrets
// has no folder for them.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const FOLDER = '/run/secrets';
const CHANGED = path.join(FOLDER, '.changed'); // another file after each change

let watched = false;
let seen = '';
let names = new Set();

/** Looks whether the function has secrets, and takes over those that are there. */
function begin() {
  watched = fs.existsSync(FOLDER);
  refresh();
}

/** Takes over the files if they have changed. */
function refresh() {
  if (!watched) return;
  const status = fs.statSync(CHANGED, { bigint: true, throwIfNoEntry: false });
  if (status === undefined) return; // There are none before the snapshot.
  const now = `${status.ino} ${status.mtimeNs}`;
  if (now === seen) return;
  const present = new Set(fs.readdirSync(FOLDER).filter((name) => !name.startsWith('.')));
  for (const name of names) if (!present.has(name)) delete process.env[name];
  for (const name of present) {
    const text = read(path.join(FOLDER, name));
    if (text !== null) process.env[name] = text;
  }
  names = present;
  seen = now;
}

// What is gone again, or no text, is a file alone.
function read(file) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(fs.readFileSync(file));
    return text.includes('\0') ? null : text;
  } catch {
    return null;
  }
}

module.exports = { begin, refresh };
