"""A function with weight: usual imports and 64 MB of touched memory (TOUCH_MIB for more or less), of which a request
reads only a little.

/         answers from one page of the buffer
/sum      reads every page and answers with a checksum, so that all of it has to come back after a restore
"""

import asyncio  # noqa: F401
import collections  # noqa: F401
import dataclasses  # noqa: F401
import datetime
import decimal  # noqa: F401
import email.message  # noqa: F401
import hashlib
import http.client  # noqa: F401
import json
import logging  # noqa: F401
import os
import sqlite3  # noqa: F401
import ssl  # noqa: F401
import urllib.request  # noqa: F401
import uuid
import zlib

PAGE = 4096
SIZE = int(os.environ.get("TOUCH_MIB", "64")) * 1024 * 1024


def _filled():
    """Every page differs, and compresses about as well as ordinary heap data: a hash at its start, small integers after
    it."""
    buffer = bytearray(SIZE)
    rest = bytes(range(64)) * ((PAGE - 32) // 64)
    for start in range(0, SIZE, PAGE):
        buffer[start:start + 32] = hashlib.sha256(start.to_bytes(8, "little")).digest()
        buffer[start + 32:start + 32 + len(rest)] = rest
    return buffer


BUFFER = _filled()


def handler(event, context):
    if event.get("rawPath") == "/sum":
        return {"crc32": zlib.crc32(BUFFER), "bytes": len(BUFFER)}
    start = uuid.uuid4().int % (SIZE // PAGE) * PAGE
    return {
        "statusCode": 200,
        "headers": {"content-type": "application/json"},
        "body": json.dumps(
            {"page": start, "first": BUFFER[start], "at": datetime.datetime.now(datetime.timezone.utc).isoformat()}
        ),
    }
