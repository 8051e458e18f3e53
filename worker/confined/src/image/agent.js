'use strict';
// Loaded into each Node.js and Bun of a container image. Older ones know no `node:` modules.
if (Number(process.versions.node.split('.')[0]) >= 16) require('./copies');
