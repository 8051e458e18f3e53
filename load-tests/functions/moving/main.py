"""A buffer of MOVING_MIB and a count.

/         counts, and answers with the count
/write    writes every page of the buffer
/digest   a checksum over all of it
"""

import os
import zlib

PAGE = 4096
SIZE = int(os.environ.get("MOVING_MIB", "64")) * 1024 * 1024
MIB = 1 << 20
buffer = bytearray(SIZE)
for start in range(0, SIZE, MIB):
    buffer[start:start + MIB] = os.urandom(MIB)
count = 0


def handler(event, context):
    global count
    count += 1
    path = event.get("rawPath")
    if path == "/write":
        for page in range(0, SIZE, PAGE):
            buffer[page] = (buffer[page] + 1) & 0xFF
    if path in ("/write", "/digest"):
        return {"count": count, "crc32": zlib.crc32(buffer)}
    return {"count": count}
