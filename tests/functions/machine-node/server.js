// Answers with the size of the machine that it takes this to be, when it began and now.
'use strict';

const http = require('node:http');
const os = require('node:os');
const v8 = require('node:v8');

const size = () => ({
  memory: os.totalmem(),
  constrained: process.constrainedMemory(),
  free: os.freemem(),
  heap_mib: v8.getHeapStatistics().heap_size_limit >> 20,
  processors: os.cpus().length,
  parallelism: os.availableParallelism(),
});
const began = size();
http.createServer((_, response) => response.end(JSON.stringify({ began, now: size() })))
  .listen(process.env.PORT, '127.0.0.1');
