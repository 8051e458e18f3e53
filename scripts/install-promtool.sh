#!/usr/bin/env bash
# Finds promtool, which checks and tests the Prometheus rules, or takes it out of Debian's package of Prometheus without
# installing that, as it would start a server. Prints its path as the last line. Idempotent.
# usage: install-promtool.sh [DEST]        (default: $FN_CACHE/tools; DEST/bin/promtool is the binary)
set -euo pipefail

dest=${1:-${FN_CACHE:-/var/cache/rekindle}/tools}
say() { echo "promtool: $*" >&2; }
for candidate in "$(command -v promtool || true)" "$dest/bin/promtool"; do
    if [ -n "$candidate" ] && "$candidate" --version > /dev/null 2>&1; then
        echo "$candidate"
        exit 0
    fi
done
command -v apt-get > /dev/null || { say "missing: install Prometheus, or put promtool on PATH"; exit 1; }
mkdir -p "$dest/bin"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say "taking it out of Debian's package"
# The package lists may be older than the mirror: read them again only when that fails.
download() { (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download prometheus > /dev/null 2>&1); }
download || { apt-get -qq update || true; download; } ||
    { say "Debian's package prometheus cannot be had here"; exit 1; }
dpkg-deb -x "$work"/prometheus_*.deb "$work/root"
install -m 755 "$work/root/usr/bin/promtool" "$dest/bin/promtool"
echo "$dest/bin/promtool"
