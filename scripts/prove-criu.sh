#!/usr/bin/env bash
# Sees to it that CRIU works here: proved by a real checkpoint, restored eagerly and through our pager (`criu check`
# passes where that fails). Takes the one in the private prefix, else a copy of the system's, else installs a newer one.
# Needs root.
# usage: prove-criu.sh [FN [LOG]]        (default: the fn on PATH, no log kept)
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
fn=${1:-fn}
log=${2:-$(mktemp)}
[ -n "${2:-}" ] || trap 'rm -f "$log"' EXIT
prefix=/usr/local/lib/rekindle/criu

say() { echo "criu: $*"; }
fail() { echo "criu: $*" >&2; exit 1; }
proves() { "$fn" doctor --criu-only --criu "$1" > "$log" 2>&1; }

if [ ! -x "$prefix/criu" ] || ! proves "$prefix/criu"; then
    [ "$(id -u)" = 0 ] || fail "it can be proved and installed by root only"
    system=$(PATH=$PATH:/usr/sbin:/usr/local/sbin command -v criu || true)
    if [ -n "$system" ] && proves "$system"; then
        say "the system's works; taking a copy with its libraries"
        "$here/copy-criu.sh" "$system" "$prefix"
    else
        say "installing a newer one into $prefix"
        # One that starts and does not work may be so for its deferred libraries. It is kept until there is another.
        before=$prefix.before
        rm -rf "$before"
        [ ! -e "$prefix" ] || mv -T "$prefix" "$before"
        "$here/install-criu.sh" "$prefix" || {
            cat "$log" >&2
            rm -rf "$prefix"
            [ ! -e "$before" ] || mv -T "$before" "$prefix"
            fail "the one in $prefix was not proved (see above), and no newer one can be had"
        }
        rm -rf "$before"
    fi
    proves "$prefix/criu" ||
        { cat "$log" >&2; fail "it cannot checkpoint on this machine: see above and \`fn doctor\`"; }
fi
if [ "$(id -u)" = 0 ]; then
    # Only if it works as well so. The directory stays: sandboxes have it mounted.
    libraries() { find "$prefix/lib" -name 'deferred-*' | sort; }
    before=$(libraries)
    whole=$(mktemp -d)
    cp -a "$prefix/lib/." "$whole"
    "$here/defer-libraries.sh" "$prefix" || say "starts with all its libraries"
    if [ "$(libraries)" != "$before" ] && ! proves "$prefix/criu"; then
        (cd "$whole" && for library in *; do
            cp -a "$library" "$prefix/lib/$library.new" && mv -T "$prefix/lib/$library.new" "$prefix/lib/$library"
        done)
        say "starts with all its libraries, as it cannot checkpoint without"
    fi
    rm -rf "$whole"
fi
say "proved: $("$prefix/criu" --version | sed -n 's/^Version: *//p')"
