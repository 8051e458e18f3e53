#!/usr/bin/env python3
"""Runs every test of the workspace, two programs at a time: most of what end-to-end tests do is to wait.

usage: run-tests.py [ARGUMENT OF cargo test]...

Builds what is missing first. Each program's output is printed when it ends, the longest-running programs at the end.
Documentation's examples run last. JOBS sets how many programs run at once. Ends with 1 if a test failed.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

CARGO = ["cargo", "test", "--release", "--locked", "--workspace"]
JOBS = int(os.environ.get("JOBS") or os.cpu_count() or 1)
# How long the tests of each took when it was last looked at, seconds: the longest begin first, so that none is left
# over at the end. The others take less.
LONG = {
    "renewal": 106, "losses": 98, "failures": 88, "letting_go": 81, "checkpoint": 77, "oracle": 70, "policy": 69,
    "randomness": 67, "idle_memory": 67, "migration": 60, "images": 50, "memory": 49, "restore": 49, "sharing": 44, "collection": 43,
    "platform": 42, "adversary": 40, "durability": 39, "schedulers": 37, "damage": 36,
}


def programs(arguments):
    """The test programs, each with its name and the directory of its package."""
    command = [*CARGO, "--no-run", "--message-format=json-render-diagnostics", *arguments]
    built = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            package = pathlib.Path(message["manifest_path"]).parent
            found.append((message["target"]["name"], message["executable"], package))
    return sorted(found, key=lambda program: -LONG.get(program[0], 0))


def main():
    arguments = sys.argv[1:]
    printing, started, took = threading.Lock(), time.monotonic(), []

    def run(program):
        name, executable, package = program
        began = time.monotonic()
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(package)}
        ended = subprocess.run(
            [executable], cwd=package, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False,
        )
        with printing:
            took.append((time.monotonic() - began, name))
            print(f"     Running {name} of {package.name} ({executable})", flush=True)
            sys.stdout.buffer.write(ended.stdout)
            if ended.returncode:
                print(f"run-tests: {name} of {package.name} ended with {ended.returncode}")
            sys.stdout.flush()
        return ended.returncode

    all_programs = programs(arguments)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        failed = sum(code != 0 for code in pool.map(run, all_programs))
    examples = subprocess.run([*CARGO, "--no-fail-fast", "--doc", *arguments], check=False)
    if failed:
        print(f"error: {failed} target{'s' if failed > 1 else ''} failed:")
    print(f"\nrun-tests: {len(all_programs)} programs in {time.monotonic() - started:.0f} s, {failed} failed; the longest:")
    for seconds, name in sorted(took, reverse=True)[:12]:
        print(f"  {seconds:4.0f} s  {name}")
    sys.exit(1 if failed or examples.returncode else 0)


if __name__ == "__main__":
    main()
