#!/usr/bin/env bash
# Builds a sample of functions/samples with AWS's client of its language in the cache, and prints its directory as the
# last line. Tests deploy it, and run it under AWS's emulator. Idempotent: what was built before costs nothing. The
# first time takes seconds for Go and Java, and one to two minutes for Node.js and Rust.
# usage: build-lambda-sample.sh go|java|node|rust [DEST]        (default: $FN_CACHE/lambda)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
language=${1:-}
name=lambda-$language
fail() { echo "$name: $*" >&2; exit 1; }
need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" > /dev/null ||
            fail "$tool is missing: run scripts/setup.sh test-packages. Without it the sample is not tested."
    done
}

case $language in
go)
    # shellcheck source=scripts/find-go.sh
    . "$here/find-go.sh"
    go=$(find_go "$name" "Without it the sample is not tested.")
    PATH=$(dirname "$go"):$PATH
    ;;
java) need mvn javac jlink ;;
node) need npm cmake make c++ python3 ;;
rust) need cargo ;;
*)
    sed -n '5s/^# //p' "$0" >&2
    exit 2
    ;;
esac

sample=$here/../functions/samples/$name
dest=${2:-${FN_CACHE:-/var/cache/rekindle}/lambda}
mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
# What git leaves out was made by a build in the checkout.
made=(-name target -o -name node_modules -o -name jre -o -name bootstrap)
inputs=$(cd "$sample" && find . \( "${made[@]}" \) -prune -o -type f -print | LC_ALL=C sort)
key=$(cd "$sample" && { xargs sha256sum <<< "$inputs"; [ "$language" != java ] || javac --version; } |
    sha256sum | cut -c -16)
built=$dest/$name-$key

# One at a time: whoever waits finds it built.
exec 9> "$dest/$name.lock"
flock 9
if [ ! -d "$built" ]; then
    echo "$name: building" >&2
    # Under its own name, since npm looks at it, and renamed when it is whole.
    work=$(mktemp -d "$dest/.build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/$name"
    (cd "$sample" && xargs cp --parents -t "$work/$name" <<< "$inputs")
    "$work/$name/build.sh" >&2 9>&-
    # Cargo's intermediate files are larger than all of the rest.
    [ "$language" != rust ] || rm -rf "$work/$name/target"
    # What other sources have made.
    rm -rf "$dest/$name"-*
    mv "$work/$name" "$built"
fi
echo "$built"
