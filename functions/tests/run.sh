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
for part in "${parts[@]}"; do
    case $part in
        python) (cd python && "${alone[@]}" python3 -m unittest) ;;
        node) (cd node && "${alone[@]}" node --test) ;;
        samples) (cd samples && python3 -m unittest) ;;
        rootfs) (cd rootfs && python3 -m unittest) ;;
        *) echo "run.sh: no part '$part': use python, node, samples or rootfs" >&2; exit 2 ;;
    esac
done
