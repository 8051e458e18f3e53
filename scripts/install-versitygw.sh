#!/usr/bin/env bash
# Builds versitygw, the second S3 server that the store conformance suite runs against, from the Go module proxy.
# It is a test tool: Rekindle itself does not need it. Idempotent: the same version already in DEST costs nothing.
# usage: install-versitygw.sh DEST        (DEST/versitygw is the binary; then REKINDLE_VERSITYGW=DEST/versitygw make test)
set -euo pipefail

dest=${1:?usage: install-versitygw.sh DEST}
module=github.com/versity/versitygw/cmd/versitygw
version=v1.8.0
oldest_go=1.21 # from here on, go fetches the newer toolchain that a module asks for by itself

binary=$dest/versitygw
# Which version it is stands beside the binary, which knows none of its own when built this way.
if [ "$(cat "$dest/versitygw.version" 2>/dev/null)" = "$version" ] && "$binary" --version >/dev/null 2>&1; then
    echo "versitygw: $version is in $dest"
    exit 0
fi

go=$(command -v go || { [ -x /usr/local/go/bin/go ] && echo /usr/local/go/bin/go; } || true)
if [ -z "$go" ]; then
    echo "versitygw: needs Go $oldest_go or later, which is not installed. Debian 12's own package (1.19) is too old:" \
        "unpack an official release to /usr/local/go, then run this again. Without it the conformance suite runs" \
        "against the embedded server only and says so." >&2
    exit 1
fi
have=$("$go" env GOVERSION | sed 's/^go//')
if [ "$(printf '%s\n' "$oldest_go" "$have" | sort -V | head -n 1)" != "$oldest_go" ]; then
    echo "versitygw: Go $have ($go) is too old, $oldest_go or later is needed; Debian 12's package is 1.19:" \
        "unpack an official release to /usr/local/go and put /usr/local/go/bin first in PATH." >&2
    exit 1
fi

mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
echo "versitygw: building $version with Go $have (one to three minutes the first time)"
# Into a directory beside the target, so that an interrupted build never leaves half a binary under the name.
work=$(mktemp -d "$dest/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
GOBIN=$work CGO_ENABLED=0 GOFLAGS=-p=2 "$go" install -trimpath "$module@$version"
mv -f "$work/versitygw" "$dest/versitygw"
echo "$version" > "$dest/versitygw.version"
echo "versitygw: $version is in $dest"
