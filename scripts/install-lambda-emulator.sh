#!/usr/bin/env bash
# Builds AWS's runtime interface emulator from the Go module proxy and prints its path as the last line; tests compare
# the platform's answers with its. Idempotent: what was built before costs nothing. Takes some seconds.
# usage: install-lambda-emulator.sh [DEST]        (default: $FN_CACHE/tools; DEST/bin/aws-lambda-rie is the binary)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:-${FN_CACHE:-/var/cache/rekindle}/tools}
module=github.com/aws/aws-lambda-runtime-interface-emulator
version=v0.0.0-20261030222936-bef5c4ba774d

binary=$dest/bin/aws-lambda-rie
if [ "$(cat "$binary.version" 2>/dev/null)" = "$version" ] && [ -x "$binary" ]; then
    echo "$binary"
    exit 0
fi

# shellcheck source=scripts/find-go.sh
. "$here/find-go.sh"
go=$(find_go lambda-emulator "Without it answers are not compared with AWS's emulator.")
mkdir -p "$dest/bin"
dest=$(cd "$dest" && pwd)
echo "lambda-emulator: building $version" >&2
# Into a directory beside the target, so that an interrupted build never leaves half a binary under the name.
work=$(mktemp -d "$dest/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
GOBIN=$work CGO_ENABLED=0 GOFLAGS="-p=${GO_JOBS:-2}" "$go" install -trimpath "$module/cmd/aws-lambda-rie@$version" >&2
mv -f "$work/aws-lambda-rie" "$dest/bin/aws-lambda-rie"
echo "$version" > "$dest/bin/aws-lambda-rie.version"
echo "$dest/bin/aws-lambda-rie"
