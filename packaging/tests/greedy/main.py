"""Takes more memory than it may have, or keeps some."""

import os

KEPT = []


def handler(event, context):
    if event["rawPath"] == "/memory":
        return len(bytearray(os.urandom(1 << 20)) * 256)
    if event["rawPath"] == "/keep" and not KEPT:
        KEPT.append(bytearray(16 << 20))
        KEPT[0][::4096] = b"1" * 4096
    return "well"
