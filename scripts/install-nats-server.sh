#!/usr/bin/env bash
# Builds NATS' server from the Go module proxy; the tests of rekindle-events read from it. Rekindle itself does not need
# it: it is a process of the tests. Idempotent: the same version already in DEST costs nothing.
# usage: install-nats-server.sh DEST
#        then REKINDLE_NATS_SERVER=DEST/nats-server make test
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:?usage: install-nats-server.sh DEST}
version=v2.12.14

binary=$dest/nats-server
if [ "$(cat "$binary.version" 2>/dev/null)" = "$version" ] && "$binary" --version >/dev/null 2>&1; then
    echo "nats-server: $version is in $dest"
    exit 0
fi

# shellcheck source=scripts/find-go.sh
. "$here/find-go.sh"
go=$(find_go nats-server "Without it the tests that read from NATS are skipped and say so.")

mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
echo "nats-server: building $version with $("$go" env GOVERSION) (one minute the first time)"
# Into a directory beside the target, so that an interrupted build never leaves half a binary under the name.
work=$(mktemp -d "$dest/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
GOBIN=$work CGO_ENABLED=0 GOFLAGS="-p=${GO_JOBS:-2}" \
    "$go" install -trimpath "github.com/nats-io/nats-server/v2@$version"
mv -f "$work/nats-server" "$dest/nats-server"
echo "$version" > "$dest/nats-server.version"
echo "nats-server: $version is in $dest"
