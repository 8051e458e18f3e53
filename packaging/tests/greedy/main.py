"""Takes more memory than it may have."""

import os


def handler(event, context):
    if event["rawPath"] == "/memory":
        return len(bytearray(os.urandom(1 << 20)) * 256)
    return "well"
