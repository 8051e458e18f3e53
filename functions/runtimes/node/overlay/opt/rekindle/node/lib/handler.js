// Finds the user's handler, and runs it in each of the styles that AWS Lambda knows.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { createRequire } = require('node:module');
const { pathToFileURL } = require('node:url');

const EXTENSIONS = ['', '.js', '.mjs', '.cjs'];
const ES_MODULE = new Set(['ERR_REQUIRE_ESM', 'ERR_REQUIRE_ASYNC_MODULE']);

/** FN_HANDLER names nothing that can be called. */
class HandlerNotFound extends Error {}

/**
 * The function that `name` ('file.export', the file below `app` and without its extension) stands for. CommonJS and ES
 * modules. Throws HandlerNotFound, or whatever the user's module throws while it is loaded.
 */
async function load(app, name) {
  const match = /^((?:.*\/)?[^./]+)\.(.+)$/.exec(name.replace(/^\.\//, ''));
  if (!match) throw new HandlerNotFound(`handler '${name}' is not of the form 'file.export'; set entry in fn.toml`);
  const [, module, exported] = match;
  const loaded = await loadModule(app, name, module);
  let handler = find(loaded, exported);
  if (handler === undefined && loaded.default) handler = find(loaded.default, exported);
  if (handler === undefined) {
    throw new HandlerNotFound(
      `handler '${name}': module '${module}' does not export '${exported}'; check entry in fn.toml`,
    );
  }
  if (typeof handler !== 'function') throw new HandlerNotFound(`handler '${name}': '${exported}' is not a function`);
  return handler;
}

function find(object, dotted) {
  return dotted.split('.').reduce((value, key) => value?.[key], object);
}

async function loadModule(app, name, module) {
  const file = EXTENSIONS.map((extension) => path.resolve(app, module + extension)).find(isFile);
  const require = createRequire(path.join(app, 'bootstrap.js'));
  if (file === undefined) {
    // A folder with a package.json or an index.js.
    const folder = path.resolve(app, module);
    if (!fs.existsSync(folder)) {
      throw new HandlerNotFound(
        `handler '${name}': there is no ${module}.js, .mjs or .cjs in the function's folder; check entry in fn.toml`,
      );
    }
    return require(folder);
  }
  if (file.endsWith('.mjs')) return import(pathToFileURL(file));
  try {
    return require(file);
  } catch (error) {
    if (ES_MODULE.has(error?.code)) return import(pathToFileURL(file));
    throw error;
  }
}

function isFile(file) {
  return fs.statSync(file, { throwIfNoEntry: false })?.isFile() ?? false;
}

/**
 * Runs `handler` and resolves to its value: what it returns, what its promise resolves to, or what it passes to the
 * callback or to context.succeed, fail or done. A handler that declares three parameters and returns no promise is
 * waited for, whatever it returns; one that declares fewer is done when it returns.
 */
function call(handler, event, context) {
  return new Promise((resolve, reject) => {
    const callback = (error, value) => (error === null || error === undefined ? resolve(value) : reject(error));
    context.done = callback;
    context.succeed = resolve;
    context.fail = reject;
    const value = handler(event, context, callback);
    if (typeof value?.then === 'function') value.then(resolve, reject);
    else if (handler.length < 3) resolve(value);
  });
}

module.exports = { load, call, HandlerNotFound };
