#!/bin/sh
# Builds ./server as a static binary. Needs rustc and the C library's static archive (libc6-dev).
set -eu
cd "$(dirname "$0")"
rustc --edition 2024 --crate-name server -C opt-level=2 -C panic=abort -C strip=symbols \
    -C target-feature=+crt-static -o server src/main.rs
