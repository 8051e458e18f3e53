#!/usr/bin/env python3
"""Runs every test of the workspace, more programs at a time than there are processors: what end-to-end tests do most is
to wait.

usage: run-tests.py [ARGUMENT OF cargo test]...

Builds what is missing first. Each program's output is printed when it ends, the longest-running programs at the end.
Documentation's examples run last, if there are any. JOBS sets how many programs run at once, ONLY names the tests, or
the modules of end-to-end tests, that are run. Ends with 1 if a test failed.
"""

import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import threading
import time

CARGO = ["cargo", "test", "--release", "--locked", "--workspace"]
# Lines of documentation that begin or end a block of code, and the words at its beginning that say it is not to be run.
FENCE = re.compile(r"^\s*//[/!]\s*```(.*)$", re.M)
NO_CODE = {"text", "ignore", "json", "toml", "sh"}
# What one program has of memory at least: its platforms, their functions, and the store of their snapshots.
MEMORY = 5 << 30
# The tests to run; all if there are none.
ONLY = os.environ.get("ONLY", "").split()
# The program whose modules are run apart.
END_TO_END = "e2e"
# How long the tests of each took when it was last looked at, seconds: the longest begin first, so that none is left
# over at the end. The others take less.
LONG = {
    "letting_go": 191,
    "migration": 185,
    "lambda_clients": 172,
    "versions": 162,
    "memory": 161,
    "checkpoint": 156,
    "tiers": 155,
    "randomness": 146,
    "restorer": 142,
    "losses": 126,
    "schedules": 121,
    "policy": 120,
    "schedulers": 117,
    "renewal": 117,
    "rekindle_scheduler": 114,
    "machine": 99,
    "failures": 97,
    "restore": 95,
    "rekindle_snapshotter": 95,
    "conformance": 94,
    "orphans": 91,
    "durability": 91,
    "databases": 89,
    "lazy_images": 87,
    "hostile_images": 86,
    "platform": 85,
    "adversary": 84,
    "secrets": 84,
    "oracle": 78,
    "encryption": 73,
    "network_leftovers": 72,
    "idle_memory": 71,
    "sharing": 70,
    "images": 68,
    "migration_targets": 67,
    "rekindle_worker": 66,
    "damage": 64,
    "command_line": 62,
    "lifecycle": 60,
    "parked": 60,
    "files": 57,
    "protocols": 57,
    "rehearsal": 57,
    "roles": 56,
    "collection": 52,
    "root_inside": 51,
    "upgrade": 50,
    "state": 49,
    "usage": 48,
    "function_calls_between_hosts": 48,
    "traces": 48,
    "identity": 48,
    "hosts": 48,
    "events": 47,
    "backup": 47,
    "adversary_moves": 44,
    "samples": 44,
    "clones": 42,
    "limits": 42,
    "differ": 40,
}


def jobs():
    """How many programs run at once: one more than there are processors, if memory allows."""
    if os.environ.get("JOBS"):
        return int(os.environ["JOBS"])
    fields = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) << 10
    return max(1, min((os.cpu_count() or 1) + 1, available // MEMORY))


def has_examples():
    """Whether any documentation has code that rustdoc would run; asking rustdoc takes it a look at every crate."""
    for file in subprocess.run(["git", "ls-files", "-z", "*.rs"], stdout=subprocess.PIPE, check=True).stdout.split(
        b"\0"
    ):
        if not file:
            continue
        is_open = False
        for fence in FENCE.findall(pathlib.Path(os.fsdecode(file)).read_text(encoding="utf-8")):
            if not is_open and not any(word in NO_CODE for word in fence.split(",")):
                return True
            is_open = not is_open
    return False


def modules(executable, package):
    """The end-to-end tests by module, each to be run in a process of its own: its name, command and package."""
    listed = subprocess.run(
        [executable, "--list", "--format", "terse"], cwd=package, stdout=subprocess.PIPE, check=True
    )
    tests = [test for test in re.findall(r"^(.+): test$", listed.stdout.decode(), re.M)]
    if ONLY:
        tests = [test for test in tests if test in ONLY or test.split("::")[0] in ONLY]
    by_module = itertools.groupby(sorted(tests), key=lambda test: test.split("::")[0])
    return [(module, [executable, "--exact", *names], package) for module, names in by_module]


def programs(arguments):
    """What is to be run, longest first: each with its name, command and the directory of its package."""
    command = [*CARGO, "--no-run", "--message-format=json-render-diagnostics", *arguments]
    built = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            package = pathlib.Path(message["manifest_path"]).parent
            name, executable = message["target"]["name"], message["executable"]
            if name == END_TO_END:
                found += modules(executable, package)
            else:
                found.append((name, [executable, *(["--exact", *ONLY] if ONLY else [])], package))
    return sorted(found, key=lambda program: -LONG.get(program[0], 0))


def main():
    arguments = sys.argv[1:]
    printing, started, took = threading.Lock(), time.monotonic(), []

    def run(program):
        name, command, package = program
        began = time.monotonic()
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(package)}
        ended = subprocess.Popen(
            command,
            cwd=package,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output = ended.stdout.read()
        # What the program and all that it waited for used of processors.
        _, status, used = os.wait4(ended.pid, 0)
        ended.returncode = os.waitstatus_to_exitcode(status)
        with printing:
            took.append((time.monotonic() - began, used.ru_utime + used.ru_stime, name))
            print(f"     Running {name} of {package.name} ({command[0]})", flush=True)
            sys.stdout.buffer.write(output)
            if ended.returncode:
                print(f"run-tests: {name} of {package.name} ended with {ended.returncode}")
            sys.stdout.flush()
        return ended.returncode

    all_programs, at_once = programs(arguments), jobs()
    built = time.monotonic() - started
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        failed = sum(code != 0 for code in pool.map(run, all_programs))
    ran = time.monotonic() - started - built
    examples = 0
    if has_examples():
        examples = subprocess.run([*CARGO, "--no-fail-fast", "--doc", *arguments], check=False).returncode
    if failed:
        print(f"error: {failed} target{'s' if failed > 1 else ''} failed:")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"\nrun-tests: {len(all_programs)} programs in {time.monotonic() - started:.0f} s, {failed} failed: "
        f"{built:.0f} s to build them, {ran:.0f} s to run them, {at_once} at a time; processors were used for "
        f"{used.ru_utime + used.ru_stime:.0f} s; the longest, and what each used of processors:"
    )
    for seconds, processors, name in sorted(took, reverse=True)[:12]:
        print(f"  {seconds:4.0f} s  {processors:4.0f} s  {name}")
    sys.exit(1 if failed or examples else 0)


if __name__ == "__main__":
    main()
