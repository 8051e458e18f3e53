// Entry point of the node runtime: loads the handler named by FN_HANDLER, then serves it on 127.0.0.1:$PORT. Started as
// `node --require lib/preload.js bootstrap.js`, so that worker threads begin as the main thread does.
//
// The contract is docs/reference/runtime-contract.md. A handler that cannot be loaded ends the process with code 1
// before it listens. With FN_LOAD=later it listens first, and loads what the worker's POST /.rekindle/load says: what
// it is until then is the same for all functions, so that their snapshots may be differences to one of it.
'use strict';

// Before any code of the user's can keep a reference to what these replace or add.
require('./lib/random').install();
globalThis.rekindle = require('./rekindle');
globalThis.awslambda = require('./lib/stream').awslambda;

const { readEnvironment } = require('./lib/context');
const { load, HandlerNotFound } = require('./lib/handler');
const secrets = require('./lib/secrets');
const { serve } = require('./lib/server');

async function main() {
  const later = process.env.FN_LOAD === 'later';
  const handler = later ? null : await loaded();
  serve(Number(process.env.PORT ?? 8080), handler, async (environment) => {
    for (const name of Object.keys(process.env)) delete process.env[name];
    Object.assign(process.env, environment);
    return loaded();
  });
}

// The handler that FN_HANDLER names; where it cannot be loaded the process ends.
async function loaded() {
  readEnvironment();
  secrets.begin();
  try {
    return await load(process.cwd(), process.env.FN_HANDLER ?? '');
  } catch (error) {
    if (error instanceof HandlerNotFound) {
      console.error(`rekindle: ${error.message}`);
    } else {
      console.error(error);
      console.error(`rekindle: the module of handler '${process.env.FN_HANDLER}' failed while it was loaded`);
    }
    process.exit(1);
  }
}

main();
