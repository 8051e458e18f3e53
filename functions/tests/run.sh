#!/usr/bin/env bash
# Tests bootstraps and samples on this machine's python3 (3.11 or newer) and node, without containers, and the root
# filesystems in chroots of themselves (needs root and Debian packages).
# usage: run.sh [python|node|samples|rootfs]...        (default: all)
set -euo pipefail
cd "$(dirname "$0")"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(python node samples rootfs)
export PYTHONDONTWRITEBYTECODE=1
# The bootstraps' tests have a network of their own, in which nobody else takes a port that was found free.
alone=()
! unshare --net true 2> /dev/null || alone=(unshare --net sh -c 'ip link set lo up && exec "$@"' sh)
# Where root filesystems are laid out, with some 40,000 files: in memory, if that has plenty of room.
trees() {
    local room
    room=$(df --output=avail /dev/shm 2> /dev/null | tail -n 1)
    ! grep -q ' /dev/shm .*noexec' /proc/mounts || room=0
    if [ "${room:-0}" -gt $((6 << 20)) ] &&
        [ "$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)" -gt $((8 << 20)) ]; then
        echo /dev/shm
    else
        echo "${TMPDIR:-/tmp}"
    fi
}
for part in "${parts[@]}"; do
    case $part in
        python) (cd python && "${alone[@]}" python3 -m unittest) ;;
        node) (cd node && "${alone[@]}" node --test) ;;
        samples) (cd samples && python3 -m unittest) ;;
        rootfs) (cd rootfs && TMPDIR=$(trees) python3 -m unittest) ;;
        *) echo "run.sh: no part '$part': use python, node, samples or rootfs" >&2; exit 2 ;;
    esac
done
