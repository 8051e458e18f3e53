#!/usr/bin/env bash
# Boots an image of packaging/image/build.sh in a virtual machine without a network, and has it run the platform under
# its own systemd (inside.sh). The image is not changed. Needs qemu-system-x86_64, OVMF, mtools; 2 GiB of memory and
# some minutes, with ACCEL=tcg (where there is no KVM that runs every guest) half an hour.
# usage: boot.sh IMAGE.raw REKINDLE-RUNTIMES.deb VERSITYGW
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage='usage: boot.sh IMAGE.raw REKINDLE-RUNTIMES.deb VERSITYGW'
image=$(realpath "${1:?$usage}")
runtimes=$(realpath "${2:?$usage}")
versitygw=$(realpath "${3:?$usage}")
limit=${LIMIT:-1800}
accel=${ACCEL:-kvm}
firmware=/usr/share/OVMF/OVMF_CODE_4M.fd

fail() { echo "boot: $*" >&2; exit 1; }
PATH=$PATH:/usr/sbin:/sbin
for program in qemu-system-x86_64 mkfs.vfat mcopy; do
    command -v "$program" > /dev/null ||
        fail "$program is missing: apt-get install qemu-system-x86 ovmf dosfstools mtools"
done
[ -f $firmware ] || fail "$firmware is missing: apt-get install ovmf"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
start=(-drive "if=pflash,format=raw,readonly=on,file=$firmware" -drive "if=pflash,format=raw,file=$work/vars")
machine=(-machine "q35,accel=kvm" -cpu "host,-arch-capabilities" -smp 2)
if [ "$accel" = tcg ]; then
    # QEMU 7.2 gets the exchange of 16 bytes wrong, and Linux panics; as it does, once in a while, when one of several
    # emulated processors runs code that another changes, so that it is worth another try. The kernel is started without
    # the firmware, to be told not to check its timer, which on a busy host is late.
    machine=(-machine q35 -accel tcg -cpu "max,-cx16" -smp 2)
    dd if="$image" of="$work/esp" bs=1M skip=1 count=256 status=none
    mcopy -i "$work/esp" ::vmlinuz ::initrd.img "$work/"
    options=$(mtype -i "$work/esp" ::loader/entries/rekindle.conf | sed -n 's/^options //p')
    start=(-kernel "$work/vmlinuz" -initrd "$work/initrd.img" -append "$options no_timer_check")
elif [ ! -w /dev/kvm ]; then
    fail "/dev/kvm is missing or not for you: say ACCEL=tcg, which is slow"
fi
# What cloud-init reads (NoCloud), and what it needs, as there is no network.
truncate -s 512M "$work/seed"
mkfs.vfat -n CIDATA "$work/seed" > /dev/null
put() { mcopy -s -i "$work/seed" "$1" "::$2"; }
printf 'instance-id: boot-test\nlocal-hostname: rekindle\n' > "$work/meta-data"
cat > "$work/user-data" <<'END'
#cloud-config
runcmd:
  - >-
    mkdir /srv/seed && mount -o ro /dev/disk/by-label/CIDATA /srv/seed && cp -r /srv/seed /root/seed &&
    chmod 755 /root/seed/versitygw
  - cd /root/seed && bash inside.sh
END
put "$work/meta-data" meta-data
put "$work/user-data" user-data
put "$here/inside.sh" inside.sh
put "$runtimes" rekindle-runtimes.deb
put "$versitygw" versitygw
put "$here/../../functions/samples/hello-python" hello-python
put "$here/greedy" greedy
put "$here/../../tests/functions/machine-python" machine-python

cp "${firmware/CODE/VARS}" "$work/vars"
echo "boot: booting $image"
timeout "$limit" qemu-system-x86_64 "${machine[@]}" -m 2048 -nic none -display none -no-reboot \
    "${start[@]}" \
    -drive if=virtio,format=raw,snapshot=on,file="$image" -drive if=virtio,format=raw,file="$work/seed" \
    -device virtio-rng-pci -serial "file:$work/console" -monitor none ||
    { tail -n 60 "$work/console" >&2; fail "the machine failed, or did not power off in $limit s"; }
cp "$work/console" "${CONSOLE:-/dev/null}"
sed -n 's/^.*rekindle-test: //p' "$work/console"
if grep -q 'rekindle-test: FAILED' "$work/console" || ! grep -q 'rekindle-test: done 0' "$work/console"; then
    sed -n '/rekindle-test: FAILED/,/rekindle-test: ok/p' "$work/console" | head -n 200 >&2
    grep -q 'rekindle-test: done' "$work/console" || tail -n 60 "$work/console" >&2
    fail "the image does not do what it should"
fi
echo "boot: the image boots and serves"
