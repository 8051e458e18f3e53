// Loaded by `node --require` before anything else, in the main thread and in every worker thread.
'use strict';

require('./random').install();
