#!/usr/bin/env bash
# Installs CRIU from a newer Debian suite into a private prefix, with its own libc and libraries, and leaves the
# system untouched. Debian 12's own CRIU (3.17) does not start on current kernels. Idempotent.
# usage: install-criu.sh PREFIX [SUITE...]        (default suites: testing, then unstable)
set -euo pipefail

prefix=${1:?usage: install-criu.sh PREFIX [SUITE...]}
shift
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(testing unstable)
wanted_major=4 wanted_minor=2

works() { [ -x "$prefix/criu" ] && "$prefix/criu" --version >/dev/null 2>&1; }
recent() {
    local version wanted=$wanted_major.$wanted_minor
    version=$("$prefix/criu" --version | sed -n 's/^Version: *//p')
    [ "$(printf '%s\n' "$wanted" "$version" | sort -V | head -n 1)" = "$wanted" ]
}
if works && recent; then
    echo "criu: $("$prefix/criu" --version | sed -n 's/^Version: *//p') is in $prefix"
    exit 0
fi

# The mirror this machine already uses for Debian: no address of our own.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "Debian" && $1 !~ /security/ { print $1; exit }')
[ -n "$mirror" ] || { echo "install-criu: apt knows no Debian mirror; run 'apt-get update' first" >&2; exit 1; }
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for suite in "${suites[@]}"; do
    rm -rf "$work/apt" "$work/root"
    mkdir -p "$work"/apt/{state/lists/partial,cache/archives/partial,etc/preferences.d} "$work/root"
    : > "$work/apt/status"
    echo "deb [signed-by=$keyring] $mirror $suite main" > "$work/apt/etc/sources.list"
    apt=(apt-get -qq
        -o "Dir::State=$work/apt/state" -o "Dir::State::status=$work/apt/status"
        -o "Dir::Cache=$work/apt/cache" -o "Dir::Etc::SourceList=$work/apt/etc/sources.list"
        -o "Dir::Etc::SourceParts=/dev/null" -o "Dir::Etc::PreferencesParts=$work/apt/etc/preferences.d"
        -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o Debug::NoLocking=1)
    echo "criu: reading the package list of Debian $suite"
    "${apt[@]}" update || continue
    # With an empty status file apt resolves the whole closure, libc included.
    "${apt[@]}" install --download-only -y criu || continue
    for deb in "$work"/apt/cache/archives/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
    binary=$(find "$work/root" -path '*/sbin/criu' -type f | head -n 1)
    loader=$(find "$work/root" -name 'ld-linux-x86-64.so.2' \( -type f -o -type l \) | head -n 1)
    if [ -z "$binary" ] || [ -z "$loader" ]; then continue; fi

    rm -rf "$prefix.new"
    mkdir -p "$prefix.new/lib"
    cp "$binary" "$prefix.new/criu"
    cp -L "$loader" "$prefix.new/lib/ld.so"
    # Only what the binary really needs, found by following NEEDED entries.
    queue=("$prefix.new/criu")
    while [ ${#queue[@]} -gt 0 ]; do
        object=${queue[0]}
        queue=("${queue[@]:1}")
        while read -r soname; do
            [ -e "$prefix.new/lib/$soname" ] && continue
            library=$(find "$work/root" -name "$soname" | head -n 1)
            [ -n "$library" ] || { echo "install-criu: $soname not found in $suite" >&2; exit 1; }
            cp -L "$library" "$prefix.new/lib/$soname"
            queue+=("$prefix.new/lib/$soname")
        done < <(patchelf --print-needed "$object")
    done
    mkdir -p "$(dirname "$prefix")"
    # RPATH, not RUNPATH: only the former also serves the libraries of the libraries.
    patchelf --set-interpreter "$prefix/lib/ld.so" --force-rpath --set-rpath "$prefix/lib" "$prefix.new/criu"
    rm -rf "$prefix"
    mv "$prefix.new" "$prefix"
    if works && recent; then
        echo "criu: $("$prefix/criu" --version | sed -n 's/^Version: *//p') from Debian $suite is in $prefix"
        exit 0
    fi
    echo "install-criu: what Debian $suite has does not start here or is older than $wanted_major.$wanted_minor" >&2
done
echo "install-criu: no suite of ${suites[*]} gave a CRIU that works" >&2
exit 1
