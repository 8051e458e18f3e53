#!/usr/bin/env python3
"""Checks that the worker's lower rooms import nothing from higher ones.

usage: check-layers.py

Standard library only. Prints a line for each import that leads upwards; ends with 1 if there is any.
"""

import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "worker" / "src"
# What each of these rooms may import beside itself. The rooms above them are not ordered yet.
MAY_IMPORT = {
    "host": set(),
    "snapshots": {"host"},
}
IMPORT = re.compile(r"\bcrate::(\w+)")


def findings():
    for room, allowed in MAY_IMPORT.items():
        for path in sorted((SOURCE / room).rglob("*.rs")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = line.split("//")[0]
                for other in IMPORT.findall(code):
                    if other not in allowed | {room, "testing"}:
                        yield f"{path.relative_to(SOURCE.parent.parent)}:{number}: {room} imports {other}"


if __name__ == "__main__":
    found = list(findings())
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
