#!/bin/sh
# Builds ./server as a static binary. Needs cargo and the C library's static archive (libc6-dev).
set -eu
cd "$(dirname "$0")"
# An own target directory, whatever the caller's environment says: its flags differ from every other build's.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --quiet --target-dir target
cp target/release/server server
