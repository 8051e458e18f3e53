#!/usr/bin/env bash
# Copies a CRIU that works into a private prefix together with its libraries and loader, the form in which workers take
# it into sandboxes, where nothing of the host is to be seen.
# usage: copy-criu.sh /usr/sbin/criu PREFIX
set -euo pipefail

binary=${1:?usage: copy-criu.sh BINARY PREFIX}
prefix=${2:?usage: copy-criu.sh BINARY PREFIX}

rm -rf "$prefix.new"
mkdir -p "$prefix.new/lib"
cp -L "$binary" "$prefix.new/criu"
cp -L "$(patchelf --print-interpreter "$binary")" "$prefix.new/lib/ld.so"
# "libx.so.1 => /lib/.../libx.so.1 (0x…)": the linker's own answer, closure included.
ldd "$binary" | awk '$2 == "=>" && $3 ~ "^/" { print $1, $3 }' | while read -r soname path; do
    cp -L "$path" "$prefix.new/lib/$soname"
done
# RPATH, not RUNPATH: only the former also serves the libraries of the libraries.
patchelf --set-interpreter "$prefix/lib/ld.so" --force-rpath --set-rpath "$prefix/lib" "$prefix.new/criu"
rm -rf "$prefix"
mv "$prefix.new" "$prefix"
"$prefix/criu" --version > /dev/null || { echo "copy-criu: the copy of $binary does not start" >&2; exit 1; }
echo "criu: $("$prefix/criu" --version | sed -n 's/^Version: *//p') from $binary is in $prefix"
