#!/usr/bin/env bash
# Builds versitygw, the second S3 server that the store conformance suite runs against, from the Go module proxy.
# It is a test tool: Rekindle itself does not need it. Idempotent: the same version already in DEST costs nothing.
# usage: install-versitygw.sh DEST        (DEST/versitygw is the binary; then REKINDLE_VERSITYGW=DEST/versitygw make test)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:?usage: install-versitygw.sh DEST}
module=github.com/versity/versitygw/cmd/versitygw
version=v1.8.0

binary=$dest/versitygw
# Which version it is stands beside the binary, which knows none of its own when built this way.
if [ "$(cat "$dest/versitygw.version" 2>/dev/null)" = "$version" ] && "$binary" --version >/dev/null 2>&1; then
    echo "versitygw: $version is in $dest"
    exit 0
fi

# shellcheck source=scripts/find-go.sh
. "$here/find-go.sh"
go=$(find_go versitygw "Without it the conformance suite runs against the embedded server only and says so.")

mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
echo "versitygw: building $version with $("$go" env GOVERSION) (one to three minutes the first time)"
# Into a directory beside the target, so that an interrupted build never leaves half a binary under the name.
work=$(mktemp -d "$dest/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
GOBIN=$work CGO_ENABLED=0 GOFLAGS=-p=2 "$go" install -trimpath "$module@$version"
mv -f "$work/versitygw" "$dest/versitygw"
echo "$version" > "$dest/versitygw.version"
echo "versitygw: $version is in $dest"
