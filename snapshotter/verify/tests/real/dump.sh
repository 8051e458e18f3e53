#!/bin/sh
# In new namespaces: starts the function, has CRIU dump it as the platform does, and prints the number of the pipe it
# writes to.
# usage: dump.sh CRIU FUNCTION.py DIRECTORY [KNOWN.py]       DIRECTORY/images is made; with KNOWN.py of one that moves,
#        and DIRECTORY/template
set -eu
criu=$1 function=$2 directory=$3 known=${4-}
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
# Where its libraries that are loaded late are looked for, and where it keeps what it finds out of the kernel.
mount -t tmpfs tmpfs /run
mkdir /run/criu
mount --bind "$(dirname "$criu")" /run/criu
ip link set lo up
head -c 65536 /dev/zero > /tmp/template
mkdir "$directory/images"
echo 500 > /proc/sys/kernel/ns_last_pid
/usr/bin/python3 "$function" < /dev/null 2>&1 | cat > "$directory/said" &
tries=0
until grep -q ready "$directory/said"; do
    tries=$((tries + 1))
    [ $tries -lt 400 ] || { cat "$directory/said" >&2; exit 3; }
    sleep 0.05
done
pid=$(pgrep --oldest --uid 100001)
readlink "/proc/$pid/fd/1" | tr -dc 0-9
# Only all of root can find out all that the kernel has; kept in /run.
"$criu" check > /dev/null 2>&1 || true
moves=
if [ -n "$known" ]; then
    /usr/bin/python3 "$known" "$directory/images/known" /tmp/template > "$directory/template"
    moves="--prev-images-dir known --track-mem --external $(cat "$directory/template")"
fi
# The kernel lets only the processes' own user read their limits, as that of a sandbox.
/usr/bin/python3 -c 'import os, sys
os.setresgid(100001, 0, 0)
os.setresuid(100001, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])' "$criu" dump --tree "$pid" --images-dir "$directory/images" --log-file dump.log \
    -v4 --leave-running --file-locks \
    --link-remap --manage-cgroups=ignore --ghost-limit 16M --tcp-close --network-lock skip $moves >&2 ||
    { tail -n 20 "$directory/images/dump.log" >&2; exit 4; }
