#!/usr/bin/env bash
# Builds a runtime's root filesystem: a minimal Debian tree, packed as a tar whose bytes depend only on the package
# versions and the files beside this script. Needs root (chroot), mmdebstrap and, for node, a C compiler; for node20 and
# later, npm.
# usage: build.sh [--force] NAME OUT.tar
#        NAME is base, python or node; a file of versions/, such as python3.13; or build, the tools that install
#        dependencies
#
# Does nothing when OUT.tar was built from the same inputs; --force takes up newer Debian packages.
# A runtime is: the packages and overlay of base/, then its own packages and overlay, then its own `finish TREE`.
# A file of versions/ says what differs in a version of a runtime:
#   runtime=python      whose overlay and `finish` it has
#   suite=trixie        the Debian release that the tree is of; without it Debian 12
#   packages=(...)      the Debian packages of its interpreter, instead of the runtime's own
#   npm=NAME@VERSION    the npm package that has its interpreter as bin/node, and sha256= of that package's archive
set -euo pipefail

fail() { echo "build.sh: $*" >&2; exit 1; }
force=0
if [ "${1:-}" = --force ]; then force=1; shift; fi
[ $# -eq 2 ] || fail "usage: build.sh [--force] NAME OUT.tar"
name=$1
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "$2")
known() { (cd "$here" && { dirname -- */packages; ls versions; } | paste -sd ' '); }
runtime=$name suite=bookworm packages=() npm='' sha256='' version=()
if [[ $name =~ ^[a-z]+[0-9.]+$ && -f $here/versions/$name ]]; then
    # shellcheck source=/dev/null
    . "$here/versions/$name"
    version=("versions/$name")
elif ! [[ $name =~ ^[a-z]+$ && -f $here/$name/packages ]]; then
    fail "no runtime '$name': choose one of $(known)"
fi

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# One fixed time for every file: archives stay equal, and CRIU sees the same mtimes on every host.
epoch=1700000000
parts=(base)
[ "$name" = base ] || parts+=("$runtime")

# Names, modes and contents of everything that goes in, so that a touched but unchanged file rebuilds nothing.
fingerprint() {
    (cd "$here" &&
        find build.sh "${parts[@]}" "${version[@]}" \( -name __pycache__ -prune \) -o \( -type f -printf '%p %m\n' \) |
        LC_ALL=C sort |
        while read -r path mode; do echo "$path $mode $(sha256sum < "$path")"; done) | sha256sum | cut -d ' ' -f 1
}
inputs=$(fingerprint)
# One at a time for each archive: whoever waits finds it up to date.
mkdir -p "$(dirname "$out")"
exec 9> "$out.lock"
flock 9
if [ $force = 0 ] && [ -f "$out" ] && [ "$(cat "$out.stamp" 2>/dev/null)" = "$inputs" ]; then
    echo "$name: $out is up to date"
    exit 0
fi
[ "$(id -u)" = 0 ] || fail "building a root filesystem needs root; run it with sudo"
command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing; run 'apt-get install mmdebstrap'"
[ -z "$npm" ] || command -v npm >/dev/null || fail "npm is missing, which fetches Node.js; run 'apt-get install npm'"

names_in() { sed -e 's/#.*//' -e '/^ *$/d' "$@"; }
names=$(names_in "$here/base/packages")
if [ ${#version[@]} -gt 0 ]; then
    names+=$'\n'$(printf '%s\n' "${packages[@]}")
elif [ "$name" != base ]; then
    names+=$'\n'$(names_in "$here/$name/packages")
fi

# The Debian mirrors this machine already uses, without any other repository it may have. main only. A mirror has all
# releases.
sources_of() {
    apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' 2>/dev/null |
        awk -v suite="$1" -v keyring=$keyring \
            '$3 == "Debian" && $2 ~ /^[a-z]+(-updates|-security)?$/ {
                sub("^[a-z]+", suite, $2); print "deb [signed-by=" keyring "]", $1, $2, "main"
            }' |
        LC_ALL=C sort -u
}
# A package may be of another release: NAME/SUITE.
sources=$(for one in "$suite" $(grep -o '/[a-z]*' <<< "$names" | tr -d / | sort -u); do sources_of "$one"; done)
# A mirror that is kept at one day is older than its lists say they may be, which this machine's apt allows or not.
eval "$(apt-config shell check_age Acquire::Check-Valid-Until)"
grep -q " $suite main" <<< "$sources" || fail "apt knows no Debian mirror; run 'apt-get update' first"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
architecture=$(dpkg --print-architecture)
fields="Status: install ok installed\nArchitecture: $architecture\nMulti-Arch: foreign\nVersion: 999"
names_in "$here/base/pretend-installed" | sed "s/.*/Package: &\n$fields\n/" > "$work/status"

echo "$name: fetching packages"
# `extract` only unpacks: no maintainer script runs, so nothing depends on this machine. /bin, /sbin and /lib are links
# into /usr, as on any installed Debian 12.
mmdebstrap --quiet --variant=extract --mode=root --format=directory --skip=cleanup/apt \
    --include="$(xargs <<< "$names")" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
    --aptopt="APT::Default-Release \"/^$suite(|-updates|-security)\$/\"" \
    --aptopt="Acquire::Check-Valid-Until \"${check_age:-true}\"" \
    --setup-hook='cd "$1" && mkdir -p usr/bin usr/sbin usr/lib usr/lib64 &&
        for d in bin sbin lib lib64; do ln -s usr/$d $d; done' \
    --setup-hook="cp '$work/status' \"\$1/var/lib/dpkg/status\"" \
    "$suite" "$tree" - <<< "$sources" > "$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "mmdebstrap could not build the tree"; }

in_tree() { chroot "$tree" /usr/bin/env -i PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"; }

# What was unpacked, for whoever has to tell which versions a function runs on.
mkdir -p "$tree/opt/rekindle"
for deb in "$tree"/var/cache/apt/archives/*.deb; do
    dpkg-deb --show --showformat='${Package} ${Version}\n' "$deb"
done |
    LC_ALL=C sort > "$tree/opt/rekindle/packages"
[ -s "$tree/opt/rekindle/packages" ] || fail "mmdebstrap kept no package files to list"

# What no function needs: documentation, translations, charset converters, package state, what only a boot or a login
# would read.
rm -rf "$tree"/usr/share/{doc,doc-base,man,info,locale,i18n,lintian,bug,common-licenses,debconf,menu,pixmaps} \
    "$tree"/usr/share/{applications,gcc,gdb,initramfs-tools,perl5,polkit-1} \
    "$tree"/usr/share/zoneinfo/{posix,right} "$tree"/usr/lib/*/gconv "$tree"/usr/lib/{init,systemd,tmpfiles.d} \
    "$tree"/usr/share/base-files \
    "$tree"/{boot,home,media,mnt,opt/*.d,srv,var} \
    "$tree"/etc/{alternatives,apt,cron.*,debconf.conf,default,dpkg,fstab,init.d,issue,issue.net,kernel} \
    "$tree"/etc/{logrotate.d,machine-id,motd,pam.d,profile.d,rmt,skel,systemd,update-motd.d}
mkdir -p "$tree"/{app,tmp,proc,dev,run,sys,root,var/tmp}
ln -s /run "$tree/var/run"

if [ -n "$npm" ]; then
    archive=$work/$(cd "$work" && npm pack --silent "$npm") || fail "npm could not fetch $npm"
    echo "$sha256 $archive" | sha256sum --check --quiet || fail "$npm is not the archive that versions/$name expects"
    mkdir "$work/package" && tar -xf "$archive" -C "$work/package" --strip-components=1
    install -D -t "$tree/usr/bin" "$work/package/bin/node"
    install -D -m 644 -t "$tree/opt/rekindle/licenses/node" "$work/package/LICENSE"
    echo "${npm/@/ }" >> "$tree/opt/rekindle/packages"
fi
for part in "${parts[@]}"; do
    [ ! -d "$here/$part/overlay" ] || cp -a --no-preserve=ownership,timestamps "$here/$part/overlay/." "$tree/"
done
find "$tree/opt" -name __pycache__ -prune -exec rm -rf {} +
ln -sf /usr/share/zoneinfo/Etc/UTC "$tree/etc/localtime"

# What the maintainer scripts would have done: the TLS roots as one file, the links to busybox, the linker's cache.
mkdir -p "$tree"/etc/ssl/certs "$tree"/usr/lib/ssl
(cd "$tree/usr/share/ca-certificates" && find . -name '*.crt' -print0 | LC_ALL=C sort -z | xargs -0 cat) \
    > "$tree/etc/ssl/certs/ca-certificates.crt"
ln -sf /etc/ssl/certs "$tree/usr/lib/ssl/certs"
ln -sf /etc/ssl/certs/ca-certificates.crt "$tree/usr/lib/ssl/cert.pem"
rm -rf "$tree/usr/share/ca-certificates" "$tree/usr/sbin/update-ca-certificates"
# Not to its dpkg, which some releases have: there is no package state.
chroot "$tree" /usr/bin/busybox --list | grep -vx dpkg | while read -r applet; do
    [ -e "$tree/usr/bin/$applet" ] || [ -e "$tree/usr/sbin/$applet" ] || ln -s busybox "$tree/usr/bin/$applet"
done
for part in "${parts[@]}"; do
    [ ! -x "$here/$part/finish" ] || { echo "$name: finishing $part"; "$here/$part/finish" "$tree"; }
done
ldconfig -r "$tree"
rm -rf "$tree"/var/cache

# Every file is readable by the function's uid, which is not known here, and no file changes identity.
find "$tree" ! -type l -exec chmod u-s,g-s,a+rX {} +
chmod 1777 "$tree/tmp" "$tree/var/tmp"
find "$tree/dev" "$tree/run" "$tree/sys" "$tree/proc" -mindepth 1 -delete

# Written beside OUT and renamed: whoever reads OUT.tar sees a whole one.
tar --create --file "$out.new" --directory "$tree" --sort=name --format=gnu --mtime=@$epoch \
    --owner=0 --group=0 --numeric-owner .
mv "$out.new" "$out"
echo "$inputs" > "$out.stamp"
echo "$name: $out, $(($(stat -c %s "$out") / 1000000)) MB, $(wc -l < "$tree/opt/rekindle/packages") packages"
