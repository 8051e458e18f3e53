#!/usr/bin/env bash
# Packs what was built into Debian packages: rekindle (fn, its init, units, settings, completions, manual page) and,
# where the runtimes' root filesystems are there, rekindle-runtimes. Needs no root, and gives the same bytes for the
# same commit and the same build.
# usage: build-deb.sh BIN_DIR OUT_DIR [RUNTIMES_DIR]        (BIN_DIR has fn, rekindle-init and rekindle-events;
#        DEB_COMPRESSION is xz)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(realpath "${1:?usage: build-deb.sh BIN_DIR OUT_DIR [RUNTIMES_DIR]}")
mkdir -p "${2:?usage: build-deb.sh BIN_DIR OUT_DIR [RUNTIMES_DIR]}"
out=$(realpath "$2")
runtimes=${3:-}

fail() { echo "build-deb: $*" >&2; exit 1; }
for program in fn rekindle-init rekindle-events; do
    [ -x "$bin/$program" ] || fail "$bin/$program is missing: run 'make dist' first"
done
version=$("$bin/fn" --version | sed -n 's/^fn //p')
[ -n "$version" ] || fail "$bin/fn does not say its version"
architecture=$(dpkg --print-architecture)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2> /dev/null || date +%s)}
export SOURCE_DATE_EPOCH=$epoch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# The newest symbols of libc that the binaries ask for: what they run on.
libc=$(objdump -T "$bin/fn" "$bin/rekindle-init" "$bin/rekindle-events" |
    grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1 | cut -d _ -f 2)

# document PACKAGE ROOT: copyright and changelog, as Debian wants them.
document() {
    local doc=$2/usr/share/doc/$1
    mkdir -p "$doc"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        echo "Upstream-Name: rekindle"
        echo
        echo "Files: *"
        echo "Copyright: 2026 the authors of Rekindle"
        echo "License: Apache-2.0"
        echo " On Debian systems the licence is in /usr/share/common-licenses/Apache-2.0."
    } > "$doc/copyright"
    printf '%s (%s) stable; urgency=medium\n\n  * See CHANGELOG.md of the project.\n\n -- %s  %s\n' \
        "$1" "$version" 'Rekindle <rekindle@localhost>' "$(date -u -R -d "@$epoch")" |
        gzip -9n > "$doc/changelog.gz"
}

# control PACKAGE ROOT <<< what differs
control() {
    mkdir -p "$2/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$1" "$version" "$architecture"
        printf 'Maintainer: Rekindle <rekindle@localhost>\nSection: net\nPriority: optional\n'
        printf 'Installed-Size: %s\n' "$(find "$2" -path "$2/DEBIAN" -prune -o -type f -printf '%s\n' |
            awk '{ k += int(($1 + 1023) / 1024) } END { print k + 0 }')"
        cat
    } > "$2/DEBIAN/control"
    (cd "$2" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) \
        > "$2/DEBIAN/md5sums"
}

# pack PACKAGE ROOT COMPRESSION
pack() {
    local deb="$out/$1_${version}_$architecture.deb"
    find "$2" -newermt "@$epoch" -exec touch -h -d "@$epoch" {} +
    dpkg-deb --root-owner-group "-Z$3" --build "$2" "$deb" > /dev/null
    (cd "$out" && sha256sum "${deb##*/}")
}

manual() {
    printf '.TH FN 1 "%s" "Rekindle %s"\n.SH NAME\nfn \\- %s\n.SH SYNOPSIS\n.B fn\n.I COMMAND\n[\\fIOPTIONS\\fR]\n' \
        "$(date -u -d "@$epoch" +%F)" "$version" "functions that restore instead of booting"
    # The help, word for word: what begins a line of roff with a dot or a quote is escaped, as are backslashes and
    # hyphens.
    verbatim() {
        printf '.nf\n'
        "$bin/fn" "$@" | sed -e 's/\\/\\e/g; s/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"
        printf '.fi\n'
    }
    echo .SH DESCRIPTION
    verbatim --help
    local command
    for command in $("$bin/fn" --help |
        awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on && /^  [a-z]/ { print $1 }'); do
        [ "$command" = help ] && continue
        printf '.SH FN %s\n' "${command^^}"
        verbatim "$command" --help
    done
}

root=$work/rekindle
install -D -m 755 "$bin/fn" "$root/usr/lib/rekindle/fn"
# Beside fn, where it looks for it.
install -D -m 755 "$bin/rekindle-init" "$root/usr/lib/rekindle/rekindle-init"
install -m 755 "$bin/rekindle-events" "$root/usr/lib/rekindle/rekindle-events"
strip --strip-unneeded "$root"/usr/lib/rekindle/{fn,rekindle-init,rekindle-events}
mkdir -p "$root/usr/bin"
ln -s ../lib/rekindle/fn "$root/usr/bin/fn"
install -m 755 "$here"/packaging/aws/* "$root/usr/lib/rekindle/"
for script in copy-criu install-criu prove-criu defer-libraries; do
    install -m 755 "$here/scripts/$script.sh" "$root/usr/lib/rekindle/$script.sh"
done
ln -s prove-criu.sh "$root/usr/lib/rekindle/prove-criu"
install -D -m 644 -t "$root/lib/systemd/system" "$here"/packaging/systemd/*
install -D -m 640 -t "$root/etc/rekindle" "$here"/packaging/default/*.env
install -D -m 644 -t "$root/usr/share/doc/rekindle/examples" "$here/packaging/default/rekindle-events.toml"
mkdir -p "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
    "$root/usr/share/fish/vendor_completions.d" "$root/usr/share/man/man1"
"$bin/fn" completions bash > "$root/usr/share/bash-completion/completions/fn"
"$bin/fn" completions zsh > "$root/usr/share/zsh/vendor-completions/_fn"
"$bin/fn" completions fish > "$root/usr/share/fish/vendor_completions.d/fn.fish"
manual | gzip -9n > "$root/usr/share/man/man1/fn.1.gz"
install -D -m 644 "$here/packaging/deb/lintian-overrides" "$root/usr/share/lintian/overrides/rekindle"
document rekindle "$root"
needs="libc6 (>= $libc), libgcc-s1, libsqlite3-0, libzstd1, adduser, iproute2, nftables, patchelf"
control rekindle "$root" << END
Depends: $needs, debian-archive-keyring
Suggests: awscli, rekindle-runtimes, mmdebstrap
Description: serverless functions that restore instead of booting
 Functions are started once, warmed up, checkpointed with CRIU and restored
 lazily from then on, on plain Linux hosts and any S3 store. This package has
 fn, which is every role and the client, rekindle-events, which reads queues,
 and units for each.
END
install -m 755 "$here/packaging/deb/postinst" "$here/packaging/deb/prerm" "$here/packaging/deb/postrm" "$root/DEBIAN/"
(cd "$root" && find etc -type f -printf '/%p\n' | LC_ALL=C sort) > "$root/DEBIAN/conffiles"
pack rekindle "$root" "${DEB_COMPRESSION:-xz}"

if [ -n "$runtimes" ] && compgen -G "$runtimes/*.tar" > /dev/null; then
    root=$work/runtimes
    install -D -m 644 -t "$root/usr/share/rekindle/runtimes" "$runtimes"/*.tar
    document rekindle-runtimes "$root"
    control rekindle-runtimes "$root" << END
Recommends: rekindle (= $version)
Description: root filesystems of Rekindle's runtimes
 Minimal Debian trees for functions in Python, Node.js or any language, to be put
 into a cluster's store once: fn runtimes import --cache /usr/share/rekindle.
END
    pack rekindle-runtimes "$root" zstd
fi
