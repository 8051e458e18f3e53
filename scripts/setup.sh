#!/usr/bin/env bash
# Installs what Rekindle needs on Debian 12, and nothing twice. Quick when there is nothing to do.
# usage: setup.sh packages     what building and running need, from apt
#        setup.sh test-packages  what the tests need beside that
#        setup.sh runtimes [NAME...]  the runtimes' root filesystems; others by name:
#                                     setup.sh runtimes python3.14 node24
#        setup.sh criu         CRIU, proved by a real checkpoint (needs the built `fn`)
#        setup.sh host         both
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
fn=${FN:-${CARGO_TARGET_DIR:-$here/../target}/release/fn}
cache=${FN_CACHE:-/var/cache/rekindle}
criu_prefix=/usr/local/lib/rekindle/criu

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }
installed() { [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

packages() {
    command -v cargo > /dev/null || fail "cargo is missing: install Rust from https://rustup.rs, then run this again"
    local wanted_rust have_rust
    wanted_rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
    have_rust=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$wanted_rust" "$have_rust" | sort -V | head -n 1)" = "$wanted_rust" ] ||
        fail "cargo is $have_rust, and $wanted_rust or newer is needed: run 'rustup update stable', then this again"
    # SQLite and zstd are linked; patchelf and mmdebstrap make CRIU's prefix and the runtimes; nft makes the rules of
    # functions' networks.
    install_missing build-essential pkg-config libsqlite3-dev libzstd-dev patchelf mmdebstrap debian-archive-keyring \
        iproute2 nftables python3 zstd curl
}

test_packages() {
    # Its programs alone; without them the tests that want them say so and are skipped.
    [ "$(id -u)" != 0 ] || "$here/install-postgres.sh"
    local wanted=(python3-pip python3-venv libjemalloc2 libfaketime skopeo buildah)
    command -v shellcheck > /dev/null || wanted+=(shellcheck)
    # Node may come from elsewhere than Debian; then its npm does too.
    command -v node > /dev/null || wanted+=(nodejs)
    command -v npm > /dev/null || wanted+=(npm)
    # For AWS's Lambda clients of Node.js, which compiles itself, and of Java.
    command -v cmake > /dev/null || wanted+=(cmake)
    command -v mvn > /dev/null || wanted+=(maven)
    command -v jlink > /dev/null || wanted+=(default-jdk-headless)
    install_missing "${wanted[@]}"
    # The program alone: its package would start a registry.
    local registry=${FN_CACHE:-/var/cache/rekindle}/tools/bin/docker-registry work
    if [ "$(id -u)" = 0 ] && [ ! -x "$registry" ]; then
        work=$(mktemp -d)
        cd "$work"
        apt-get -qq download docker-registry > /dev/null 2>&1 ||
            { apt-get -qq update && apt-get -qq download docker-registry > /dev/null 2>&1; }
        dpkg-deb --extract docker-registry_*.deb .
        install -D usr/bin/docker-registry "$registry"
        cd "$here"
        rm -rf "$work"
    fi
}

# Installs those of the packages that are missing.
install_missing() {
    local missing=() package
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    # The runtimes' root filesystems are made from them too, whatever is installed here.
    if [ "$(id -u)" = 0 ] && ! compgen -G '/var/lib/apt/lists/*_Packages*' > /dev/null; then
        say "reading apt's package lists"
        apt-get -qq update
    fi
    [ ${#missing[@]} -gt 0 ] || { say "packages are there"; return; }
    [ "$(id -u)" = 0 ] || fail "run as root, or install: ${missing[*]}"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # The package lists may be older than the mirror: read them again only when that fails.
    apt-get -qq install --no-install-recommends -y "${missing[@]}" > /dev/null 2>&1 && return
    apt-get -qq update
    apt-get -qq install --no-install-recommends -y "${missing[@]}"
}

criu() {
    [ -x "$fn" ] || fail "$fn is missing: run 'make build' first"
    mkdir -p "$cache"
    local binary=$criu_prefix/criu stamp=$cache/criu-proved
    local prover
    # Part of the stamp: when the proof changes, or the pager that serves it, what they said before counts no more.
    prover=$(cat "$here"/{prove-criu,defer-libraries}.sh "$here"/../cli/src/commands/doctor/*.rs \
        "$here"/../worker/pager/src/*.rs | sha256sum | cut -c -16)
    identity() { echo "$(stat -c '%s %Y' "$binary") $(uname -r) $prover"; }
    if [ -x "$binary" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(identity)" ]; then
        say "CRIU is proved"
        return
    fi
    "$here/prove-criu.sh" "$fn" "$cache/criu-proof.log"
    identity > "$stamp"
}

runtimes() {
    local name names=("$@")
    mkdir -p "$cache/runtimes"
    if [ $# = 0 ]; then
        names=(base python node build)
        # Those that were made by name before belong to this tree, too.
        for name in "$cache"/runtimes/*.tar; do
            name=$(basename "$name" .tar)
            [[ $name =~ ^(python|node)[0-9.]+$ ]] && names+=("$name")
        done
    fi
    for name in "${names[@]}"; do
        # These names of fn.toml are of archives without a version.
        case $name in
        python3.11) name=python ;;
        node18) name=node ;;
        esac
        "$here/../functions/runtimes/build.sh" "$name" "$cache/runtimes/$name.tar"
    done
}

case ${1:-} in
packages) packages ;;
test-packages) packages; test_packages ;;
runtimes) shift; runtimes "$@" ;;
criu) criu ;;
host) criu; runtimes ;;
*)
    sed -n '2,9s/^# //p' "$0" >&2
    exit 2
    ;;
esac
