// How many threads are worth having. Node.js 18 asks the kernel on which processors it may run, which names all of the
// host's; the files that list processors have as many as the function may use. Loaded in the main thread and in every
// worker thread.
'use strict';

const { syncBuiltinESMExports } = require('node:module');
const os = require('node:os');

const { availableParallelism } = os;
if (availableParallelism !== undefined) {
  os.availableParallelism = () => Math.min(availableParallelism(), os.cpus().length || 1);
  syncBuiltinESMExports();
}
