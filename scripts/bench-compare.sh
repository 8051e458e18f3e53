#!/usr/bin/env bash
# Compares two revisions: builds the programs of both, each in a checkout of its own, then measures them in one run, in
# turn. Two records of `make bench` (files) are compared as they are. Built programs are kept by commit below
# $FN_CACHE/compare.
# usage: bench-compare.sh REVISION|RECORD REVISION|RECORD [OPTIONS OF rekindle-bench compare]
set -euo pipefail
shopt -s inherit_errexit # what `programs` runs to print a name must not go on after a failed build

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
a=${1:?usage: bench-compare.sh A B [options]} b=${2:?usage: bench-compare.sh A B [options]}
shift 2
cache=${FN_CACHE:-/var/cache/rekindle}/compare
program=${CARGO_TARGET_DIR:-$here/target}/dist/rekindle-bench
[ -x "$program" ] || { echo "bench-compare: rekindle-bench is not built: 'make dist' first" >&2; exit 1; }
bench() { "$program" compare "$@"; }

if [ -f "$a" ] && [ -f "$b" ]; then
    bench "$(realpath "$a")" "$(realpath "$b")" "$@"
    exit
fi

# commit REVISION: its full name, or a message of what to write instead.
commit() {
    git -C "$here" rev-parse --verify --quiet "$1^{commit}" ||
        { echo "bench-compare: \"$1\" is neither a revision nor a record" >&2; return 1; }
}

# programs COMMIT: builds its fn and rekindle-init, and prints their directory.
programs() {
    local to=$cache/$1
    if [ ! -x "$to/fn" ] || [ ! -x "$to/rekindle-init" ]; then
        local work
        mkdir -p "$cache"
        work=$(mktemp -d "$cache/.checkout.XXXXXX")
        echo "bench-compare: building ${1:0:12}" >&2
        # With the time of now: in one target directory, which has dependencies built once, files as old as their commit
        # would pass for the other revision's, built later.
        git -C "$here" archive "$1" | tar -x --touch -C "$work"
        # As it is packaged: older revisions have no profile of its own for that.
        local profile=dist
        grep -q '^\[profile\.dist\]' "$work/Cargo.toml" || profile=release
        (cd "$work" && CARGO_TARGET_DIR=$cache/target \
            cargo build --profile "$profile" --locked -p rekindle-cli -p rekindle-init) >&2
        mkdir -p "$to.new"
        cp "$cache/target/$profile/fn" "$cache/target/$profile/rekindle-init" "$to.new/"
        mv -T "$to.new" "$to"
        rm -rf "$work"
    fi
    echo "$to"
}

commit_a=$(commit "$a")
commit_b=$(commit "$b")
dir_a=$(programs "$commit_a")
dir_b=$(programs "$commit_b")
bench "$dir_a" "$dir_b" --name-a "$a (${commit_a:0:12})" --name-b "$b (${commit_b:0:12})" "$@"
