"""Lays out for CRIU an earlier dump that has every page, and has its kernel probe say that changed pages are marked, as
the platform does when an instance moves (worker/src/migration). Prints what CRIU calls the template.

usage: known.py DIRECTORY TEMPLATE
"""

import os
import re
import struct
import sys

PROBE = "/run/criu.kdat"
# `has_dirty_track` of CRIU 4.2.
TRACKS = 32


def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def message(*fields):
    encoded = b"".join(varint(number << 3) + varint(value) for number, value in fields)
    return struct.pack("<I", len(encoded)) + encoded


def main(directory, template):
    os.mkdir(directory)
    every_page = message((1, 0), (2, 0), (4, 4), (5, 1 << 45))
    images = {"inventory.img": struct.pack("<I", 0x58313116) + message((1, 2), (8, 1 << 60)), "pages-1.img": b""}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        images[f"pagemap-{pid}.img"] = struct.pack("<II", 0x54564319, 0x56084025) + message((1, 1)) + every_page
    for name, image in images.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(image)
    with open(PROBE, "r+b") as probe:
        probe.seek(TRACKS)
        probe.write(b"\1")
    fd = os.open(template, os.O_RDONLY)
    with open(f"/proc/self/fdinfo/{fd}") as info:
        mount = int(re.search(r"^mnt_id:\s*(\d+)", info.read(), re.M)[1])
    print(f"file[{mount:x}:{os.fstat(fd).st_ino:x}]", end="")


main(*sys.argv[1:])
