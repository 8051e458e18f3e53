#!/usr/bin/env bash
# Installs the container engines that `make bench` measures beside the platform, from Debian's packages: crun, runc,
# podman. What is on PATH already is left alone. What cannot be had is said, and reported by the benchmark as missing:
# that is no failure.
# usage: install-peers.sh
set -euo pipefail

say() { echo "peers: $*" >&2; }

missing=()
for program in crun runc podman; do
    command -v "$program" > /dev/null || missing+=("$program")
done
[ ${#missing[@]} -gt 0 ] || { say "crun, runc and podman are there"; exit 0; }
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    say "missing: ${missing[*]}: install them as root from Debian's packages; the benchmark goes on without them"
    exit 0
fi
say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# The package lists may be older than the mirror: read them again only when that fails.
apt-get -qq install --no-install-recommends -y "${missing[@]}" > /dev/null 2>&1 && exit 0
apt-get -qq update || true
apt-get -qq install --no-install-recommends -y "${missing[@]}" > /dev/null 2>&1 && exit 0
say "not to be had here: ${missing[*]}; the benchmark goes on without what is missing"
