#!/usr/bin/env bash
# Finds k6, which `make load` drives the platform with, or builds it from the Go module proxy, and prints its path as
# the last line. Idempotent: what is on PATH, or was built before, costs nothing.
# usage: install-k6.sh [DEST]        (default: $FN_CACHE/tools; DEST/bin/k6 is the binary)
# Run it as `k6 run --no-usage-report`: without that it reports itself to its makers.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:-${FN_CACHE:-/var/cache/rekindle}/tools}
version=v1.8.1
oldest=1.0.0 # from here on `-o opentelemetry` is k6's own

say() { echo "k6: $*" >&2; }
# The version of a k6, as in "k6 v1.8.1 (go1.26.8, linux/amd64)"; nothing where it is none.
version_of() { "$1" version 2>/dev/null | sed -n '1s/^k6 v\([0-9][0-9.]*\).*/\1/p'; }
new_enough() { [ -n "$1" ] && [ "$(printf '%s\n' "$oldest" "$1" | sort -V | head -n 1)" = "$oldest" ]; }

binary=$dest/bin/k6
for candidate in "$(command -v k6 || true)" "$binary"; do
    if [ -n "$candidate" ] && new_enough "$(version_of "$candidate")"; then
        say "$(version_of "$candidate") is at $candidate"
        echo "$candidate"
        exit 0
    fi
done

# shellcheck source=scripts/find-go.sh
. "$here/find-go.sh"
go=$(find_go k6 "Or put a k6 of $oldest or later on PATH. Without it there is no 'make load'.")
mkdir -p "$dest/bin"
dest=$(cd "$dest" && pwd)
say "building $version (two to five minutes, once)"
# Into a directory beside the target, so that an interrupted build never leaves half a binary under the name.
work=$(mktemp -d "$dest/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
GOBIN=$work CGO_ENABLED=0 GOFLAGS="-p=${GO_JOBS:-2}" "$go" install -trimpath "go.k6.io/k6@$version" >&2
mv -f "$work/k6" "$dest/bin/k6"
say "$version is at $dest/bin/k6"
echo "$dest/bin/k6"
