#!/usr/bin/env bash
# Makes a raw disk image with Rekindle installed, to be registered as a machine image of a cloud (UEFI): Debian 13
# (SUITE=bookworm for 12), its cloud kernel, cloud-init, what workers need, and the package of `make package`. No role
# is enabled and no secret is in it: cloud-init's user data does that (terraform/boot/boot.sh). Needs root and
# mmdebstrap, but no loop device, no chroot of one's own and no virtual machine.
# usage: build.sh REKINDLE.deb OUT.raw [SIZE_MIB]        (SIZE_MIB of the disk: 4096; the root file system grows at the
#        first start)
#        build.sh --rootfs REKINDLE.deb OUT.tar           the tree alone
# On AWS: aws ec2 import-snapshot --disk-container Format=raw,UserBucket={S3Bucket=...,S3Key=...}, then
#         aws ec2 register-image
#         --architecture x86_64 --boot-mode uefi --ena-support --imds-support v2.0 --root-device-name /dev/xvda
#         --block-device-mappings ...
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rootfs=0
if [ "${1:-}" = --rootfs ]; then rootfs=1; shift; fi
deb=$(realpath "${1:?usage: build.sh [--rootfs] REKINDLE.deb OUT [SIZE_MIB]}")
out=$(realpath -m "${2:?usage: build.sh [--rootfs] REKINDLE.deb OUT [SIZE_MIB]}")
size_mib=${3:-4096}
suite=${SUITE:-trixie}
esp_mib=256

say() { echo "image: $*" >&2; }
fail() { say "$*"; exit 1; }
[ "$(id -u)" = 0 ] || fail "run it as root"
[ -f "$deb" ] || fail "$deb is missing: run 'make package'"
PATH=$PATH:/usr/sbin:/sbin
needed=(mmdebstrap)
[ $rootfs = 1 ] || needed+=(mkfs.ext4 mkfs.vfat mcopy sfdisk)
for program in "${needed[@]}"; do
    command -v "$program" > /dev/null ||
        fail "$program is missing: apt-get install mmdebstrap e2fsprogs dosfstools mtools fdisk"
done

# The mirror this machine already uses for Debian: no address of our own.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' 'Created-By: Packages' 2> /dev/null |
    awk '$2 == "Debian" && $1 !~ /security/ { print $1; exit }')
[ -n "$mirror" ] || fail "apt knows no Debian mirror; run 'apt-get update' first"
# With its libraries, in a prefix of its own: the same on every machine.
criu=/usr/local/lib/rekindle/criu
"$here/../../scripts/install-criu.sh" "$criu" >&2
"$here/../../scripts/defer-libraries.sh" "$criu" >&2
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

packages=(systemd systemd-sysv dbus udev linux-image-cloud-amd64 cloud-init cloud-guest-utils
    ca-certificates curl awscli e2fsprogs iproute2 nftables patchelf debian-archive-keyring
    systemd-resolved mmdebstrap chrony)
[ $rootfs = 1 ] || packages+=(systemd-boot-efi)
say "fetching Debian $suite and installing it"
# The package list of the machine itself comes from a public mirror, by TLS.
mmdebstrap --quiet --variant=minbase --mode=root --format=directory \
    --include="$(IFS=,; echo "${packages[*]}")" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
    --customize-hook="copy-in $deb /tmp" \
    --customize-hook='chroot "$1" sh -c "apt-get install -y -q --no-install-recommends /tmp/*.deb && rm /tmp/*.deb"' \
    --customize-hook='mkdir -p "$1/usr/local/lib/rekindle"' \
    --customize-hook="copy-in $criu /usr/local/lib/rekindle" \
    --customize-hook="copy-in $here/overlay/etc /" \
    --customize-hook='chroot "$1" systemctl --quiet enable systemd-networkd systemd-resolved chrony || true' \
    --customize-hook='rm -f "$1"/etc/machine-id "$1"/etc/hostname "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf
        : > "$1/etc/machine-id"' \
    --customize-hook='ln -s ../run/systemd/resolve/stub-resolv.conf "$1/etc/resolv.conf"' \
    "$suite" "$work/tree" "deb [signed-by=$keyring] $mirror $suite main"
# What the machine updates itself from.
{
    printf 'deb [signed-by=%s] https://deb.debian.org/debian %s main\n' "$keyring" "$suite"
    printf 'deb [signed-by=%s] https://deb.debian.org/debian-security %s-security main\n' "$keyring" "$suite"
} > "$work/tree/etc/apt/sources.list"
version=$(chroot "$work/tree" fn --version)
say "installed: $version, $(chroot "$work/tree" sh -c 'ls /boot/vmlinuz-* | sed s,.*vmlinuz-,kernel\ ,')"

if [ $rootfs = 1 ]; then
    tar --numeric-owner --xattrs -C "$work/tree" -cf "$out" .
    say "the tree is $out"
    exit
fi

# The boot partition: systemd-boot with one entry, as images are replaced and not upgraded.
root_uuid=$(cat /proc/sys/kernel/random/uuid)
kernel=$(basename "$work"/tree/boot/vmlinuz-*)
truncate -s "${esp_mib}M" "$work/esp"
mkfs.vfat -F 32 -n ESP "$work/esp" > /dev/null
mmd -i "$work/esp" ::EFI ::EFI/BOOT ::loader ::loader/entries
mcopy -i "$work/esp" "$work/tree/usr/lib/systemd/boot/efi/systemd-bootx64.efi" ::EFI/BOOT/BOOTX64.EFI
mcopy -i "$work/esp" "$work/tree/boot/$kernel" ::vmlinuz
mcopy -i "$work/esp" "$work/tree/boot/${kernel/vmlinuz/initrd.img}" ::initrd.img
printf 'default rekindle.conf\ntimeout 0\n' | mcopy -i "$work/esp" - ::loader/loader.conf
printf 'title Rekindle\nlinux /vmlinuz\ninitrd /initrd.img\noptions root=UUID=%s rw %s %s\n' \
    "$root_uuid" 'console=tty0 console=ttyS0,115200' 'nvme_core.io_timeout=4294967295' |
    mcopy -i "$work/esp" - ::loader/entries/rekindle.conf
printf 'UUID=%s / ext4 defaults,x-systemd.growfs 0 1\n' "$root_uuid" > "$work/tree/etc/fstab"

say "making the disk"
root_mib=$((size_mib - esp_mib - 2))
truncate -s "${root_mib}M" "$work/root"
mkfs.ext4 -q -U "$root_uuid" -L rekindle -d "$work/tree" "$work/root"
truncate -s "${size_mib}M" "$work/disk"
sfdisk --quiet "$work/disk" << END
label: gpt
start=1MiB, size=${esp_mib}MiB, type=uefi
start=$((esp_mib + 1))MiB, size=${root_mib}MiB, type=linux
END
dd if="$work/esp" of="$work/disk" bs=1M seek=1 conv=notrunc,sparse status=none
dd if="$work/root" of="$work/disk" bs=1M seek=$((esp_mib + 1)) conv=notrunc,sparse status=none
mv "$work/disk" "$out"
say "$out: $version, $(du -m "$out" | cut -f 1) of $size_mib MiB"
