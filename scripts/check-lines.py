#!/usr/bin/env python3
"""Checks that no line of code is longer than 120 columns. Pages are check-docs.py's.

Terraform's strings cannot be split, and neither can what others have written: lock files, images, recordings.
"""

import pathlib
import subprocess
import sys

COLUMNS = 120
ENDINGS = {".rs", ".py", ".sh", ".js", ".mjs", ".c", ".h", ".yml", ".yaml", ".service", ".timer"}
NAMES = {"Makefile", "Cargo.toml"}
RECORDED = ("fuzz/seeds/", "snapshotter/tests/golden/")


def is_code(path):
    if path.name in NAMES or path.suffix in ENDINGS:
        return True
    # Scripts without an ending.
    return not path.suffix and path.is_file() and path.read_bytes()[:2] == b"#!"


def main():
    listed = subprocess.run(["git", "ls-files", "-z"], stdout=subprocess.PIPE, check=True).stdout.decode()
    failed = False
    for name in filter(None, listed.split("\0")):
        path = pathlib.Path(name)
        if name.startswith(RECORDED) or not path.is_file() or not is_code(path):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > COLUMNS:
                print(f"{name}:{number}: a line of {len(line)} columns")
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
