#!/usr/bin/env bash
# Builds an S3 server that is not ours from the Go module proxy; the tests of the store run against it too. Rekindle
# itself needs none of them: they are test tools, processes of their own. Idempotent: the same version already in DEST
# costs nothing.
# usage: install-s3-server.sh versitygw|minio DEST
#        then REKINDLE_VERSITYGW=DEST/versitygw REKINDLE_MINIO=DEST/minio make test
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage="usage: install-s3-server.sh versitygw|minio DEST"
name=${1:?$usage} dest=${2:?$usage}
case $name in
    versitygw)
        module=github.com/versity/versitygw/cmd/versitygw version=v1.8.0
        takes="one to three minutes"
        without="the store's tests run against the directory and the tests' own server only" ;;
    minio) # It encrypts, which the others do not.
        module=github.com/minio/minio version=v0.0.0-20260212201848-7aac2a2c5b7c
        takes="three to six minutes" without="the store's tests run against no server that encrypts" ;;
    *) echo "$usage" >&2; exit 2 ;;
esac

binary=$dest/$name
# Which version it is stands beside the binary, which knows none of its own when built this way.
if [ "$(cat "$binary.version" 2>/dev/null)" = "$version" ] && "$binary" --version >/dev/null 2>&1; then
    echo "$name: $version is in $dest"
    exit 0
fi

# shellcheck source=scripts/find-go.sh
. "$here/find-go.sh"
go=$(find_go "$name" "Without it $without and say so.")

mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
echo "$name: building $version with $("$go" env GOVERSION) ($takes the first time)"
# Into a directory beside the target, so that an interrupted build never leaves half a binary under the name.
work=$(mktemp -d "$dest/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
GOBIN=$work CGO_ENABLED=0 GOFLAGS="-p=${GO_JOBS:-2}" "$go" install -trimpath "$module@$version"
mv -f "$work/$name" "$dest/$name"
echo "$version" > "$dest/$name.version"
echo "$name: $version is in $dest"
