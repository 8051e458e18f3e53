#!/usr/bin/env bash
# Finds Jaeger v2, the trace store that `fn up --traces` and `make load` send spans to, or builds it from the Go module
# proxy, and prints its path as the last line. Idempotent: what is on PATH, or was built before, costs nothing.
# usage: install-jaeger.sh [DEST]        (default: $FN_CACHE/tools; DEST/bin/jaeger is the binary)
# Its own default configuration listens on every interface: start it with load-tests/jaeger.yaml.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:-${FN_CACHE:-/var/cache/rekindle}/tools}
module=github.com/jaegertracing/jaeger
version=v1.76.0 # the tag of the v2 binary's release of that month; ./cmd/jaeger is Jaeger v2

say() { echo "jaeger: $*" >&2; }

binary=$dest/bin/jaeger
for candidate in "$(command -v jaeger || true)" "$binary"; do
    if [ -n "$candidate" ] && "$candidate" version >/dev/null 2>&1; then
        say "is at $candidate"
        echo "$candidate"
        exit 0
    fi
done

# shellcheck source=scripts/find-go.sh
. "$here/find-go.sh"
go=$(find_go jaeger "Without it 'make load' reads no trace back, and says so.")
mkdir -p "$dest/bin"
dest=$(cd "$dest" && pwd)
say "building $version (five to fifteen minutes, once)"
# Its go.mod has `replace`, which `go install MODULE@VERSION` refuses: so it is built inside a copy of its own module.
work=$(mktemp -d "$dest/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
source=$(cd "$work" && "$go" mod download -json "$module@$version" |
    sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
[ -d "$source" ] || { say "the module $module@$version could not be downloaded"; exit 1; }
cp -r "$source" "$work/source"
chmod -R u+w "$work/source"
(cd "$work/source" && CGO_ENABLED=0 "$go" build -p "${GO_JOBS:-2}" -trimpath -o "$work/jaeger" ./cmd/jaeger) >&2
mv -f "$work/jaeger" "$dest/bin/jaeger"
say "$version is at $dest/bin/jaeger"
echo "$dest/bin/jaeger"
