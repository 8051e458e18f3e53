#!/bin/sh
# Builds ./bootstrap. Needs Go.
set -eu
cd "$(dirname "$0")"
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bootstrap .
