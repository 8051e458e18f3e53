#!/bin/sh
# Builds ./bootstrap. Needs cargo.
set -eu
cd "$(dirname "$0")"
# An own target directory, whatever the caller's environment says: its flags differ from every other build's.
cargo build --release --locked --quiet --target-dir target
cp target/release/bootstrap bootstrap
