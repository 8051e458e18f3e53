#!/usr/bin/env bash
# Tests the bootstraps on this machine's python3 (3.11 or newer) and node, without containers.
# usage: run.sh [python|node|samples]...        (default: all)
set -euo pipefail
cd "$(dirname "$0")"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(python node samples)
export PYTHONDONTWRITEBYTECODE=1
for part in "${parts[@]}"; do
    case $part in
        python) (cd python && python3 -m unittest) ;;
        node) (cd node && node --test) ;;
        samples) (cd samples && python3 -m unittest) ;;
        *) echo "run.sh: no part '$part': use python, node or samples" >&2; exit 2 ;;
    esac
done
