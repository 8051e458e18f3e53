#!/usr/bin/env bash
# What boot.sh has the image do once it is up: the package's units under the machine's own systemd, first the whole
# platform, then each role by itself with an S3 server that is not ours. Each step is told on the console. Started by
# cloud-init, with the seed's files in the current directory.
set -uo pipefail

console=/dev/ttyS0
tell() { echo "rekindle-test: $*" > $console; }
failed=0
# step NAME COMMAND...: runs it, and tells how it ended.
step() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        tell "ok $name: $(tail -n 1 <<< "$output")"
    else
        failed=1
        tell "FAILED $name"
        { tail -n 40 <<< "$output"; journalctl --no-pager -q -n 40 -u 'rekindle*'; } > $console
    fi
}
# within SECONDS COMMAND...: waits until it succeeds.
within() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.2
    done
}
export HOME=/root
key() { cat /var/lib/rekindle/admin.key; }
deploy() { fn deploy "/tmp/$1"; }
# fetch START PATH OPTION...: an invocation that is started so.
fetch() {
    curl -sS --max-time 120 -H "Authorization: Bearer $(key)" -H "x-fn-force-start: $1" "${@:3}" \
        "http://127.0.0.1:8080/function/$2"
}
call() { fetch "$1" hello -f -o /dev/null -w '%{http_code} %header{x-fn-start} in %{time_total} s\n'; }
# By version 2 of control groups.
too_much_memory() { fetch restored greedy/memory | tee /dev/stderr | grep -q function_out_of_memory; }
# A sandbox looks like a machine of its function's size under version 2 as well.
sized() {
    fetch "$1" machine | tee /dev/stderr | python3 -c 'import json, sys
answer = json.load(sys.stdin)
expected = {
    "memory": 96 << 20, "available": 96 << 20, "limit": 96 << 20,
    "cpus": 0.5, "processors": 1, "cpuinfo": 1, "nproc": 1,
}
wrong = {
    (when, key): answer[when][key]
    for when in ("began", "now")
    for key in expected
    if answer[when][key] != expected[key]
}
sys.exit(f"not as expected: {wrong}" if wrong else 0)'
}
workers() { within 300 sh -c 'fn workers | grep -q " ready "'; }

for sample in hello greedy machine; do cp -r $sample* /tmp/$sample; done
printf '%s\n' 'name = "machine"' 'runtime = "python"' 'entry = "main.handler"' 'memory = "96MiB"' 'cpu = 0.5' \
    > /tmp/machine/fn.toml
step kernel uname -sr
step cgroups stat -fc %T /sys/fs/cgroup
step runtimes dpkg -i rekindle-runtimes.deb
mkdir -p /var/cache/rekindle
ln -s /usr/share/rekindle/runtimes /var/cache/rekindle/
step criu /usr/lib/rekindle/prove-criu
# It waits for some answers, which takes longer where all instructions are emulated.
step doctor within 120 fn doctor

# The whole platform.
step start systemctl start rekindle
step ready within 300 fn status
step deploy deploy hello
step booted call booted
step restored call restored
step "deploy greedy" deploy greedy
step "memory ends" too_much_memory
step "well again" fetch restored greedy/ -f
step "deploy machine" deploy machine
step "size, booted" sized booted
step "size, restored" sized restored
main() { systemctl show --property MainPID --value rekindle; }
before=$(main)
step kill systemctl kill --signal KILL --kill-whom main rekindle
again() { [ "$(main)" != 0 ] && [ "$(main)" != "$before" ] && fn status; }
step restarted within 300 again
step "restored again" within 30 call restored
# What is not touched goes to a zram of the worker's own, however this kernel tells what is there.
step stop systemctl stop rekindle
modprobe zram
printf '%s\n' FN_IDLE_SWAP=zram:256MiB FN_IDLE_AFTER=1s >> /etc/rekindle/rekindle.env
evicted() {
    fn top --json | python3 -c "import json, sys
print(sum(f['evicted_bytes'] for f in json.load(sys.stdin)['functions']) or sys.exit(1))"
}
step "start with zram" systemctl start rekindle
step "ready with zram" within 300 fn status
step "something to evict" within 30 call restored
step "idle memory goes" within 120 evicted
ask() { curl -fsS -H "Authorization: Bearer $(key)" "http://127.0.0.1:8080/v1/$1"; }
worker() { ask status | python3 -c 'import json, sys; print(json.load(sys.stdin)["workers"][0]["id"])'; }
keep() { curl -fsS --max-time 120 http://127.0.0.1:8080/function/greedy/keep; }
watched() { ask "workers/$(worker)/metrics" | grep '^rekindle_idle_watched [1-9]'; }
# On kernels that can watch processes.
if grep -q '^CONFIG_DAMON_VADDR=y' "/boot/config-$(uname -r)"; then
    step "something to watch" within 60 keep
    step "DAMON watches" within 120 watched
fi
step "and comes back" curl -fsS --max-time 120 http://127.0.0.1:8080/function/hello
step "stop with zram" systemctl stop rekindle
left() { ! pgrep rekindle-init && ! systemctl is-failed rekindle; }
step "nothing left" within 20 left

# Each role by itself.
mkdir /srv/s3
systemd-run --quiet --unit s3 "$PWD/versitygw" --access test --secret testsecret --port 127.0.0.1:9000 posix /srv/s3
for role in scheduler worker; do
    printf '%s\n' FN_S3_ENDPOINT=http://127.0.0.1:9000 FN_S3_BUCKET=rekindle AWS_ACCESS_KEY_ID=test \
        AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1 FN_SCHEDULER=127.0.0.1:8081 \
        >> /etc/rekindle/$role.env
done
echo FN_SCHEDULER=127.0.0.1:8081 >> /etc/rekindle/gateway.env
rm -rf /var/lib/rekindle
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1
# That anything answers is enough; curl of Debian 12 signs a request without a path wrong.
step store within 20 curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:9000/
step import fn runtimes import --cache /usr/share/rekindle --s3-endpoint http://127.0.0.1:9000 --s3-bucket rekindle
for role in scheduler gateway worker; do
    step "start $role" systemctl start rekindle-$role
done
step "worker serves" workers
step "deploy to roles" deploy hello
step "restored by roles" call restored
for role in gateway scheduler; do
    step "$role is nobody" \
        [ "$(stat -c %U "/proc/$(systemctl show --property MainPID --value rekindle-$role)")" = rekindle ]
done
step "security of the gateway" systemd-analyze security --threshold=30 rekindle-gateway
# What the unit lists, and nothing else: sys_admin is of it, sys_module is not.
bounded() { grep -q "^CapBnd:.*aac15fb$" "/proc/$(systemctl show --property MainPID --value rekindle-worker)/status"; }
step "the worker has its rights only" bounded
step "stop roles" systemctl stop rekindle-worker rekindle-gateway rekindle-scheduler
step "nothing left" within 20 left
tell "done $failed"
sync
systemctl poweroff
