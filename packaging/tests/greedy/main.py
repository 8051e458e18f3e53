"""Takes more memory, or more processes, than it may have."""

import os
import time


def handler(event, context):
    if event["rawPath"] == "/memory":
        return len(bytearray(os.urandom(1 << 20)) * 256)
    if event["rawPath"] == "/processes":
        return processes()
    return "well"


def processes():
    children = []
    try:
        while len(children) < 10000:
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            children.append(child)
    except OSError as error:
        return {"children": len(children), "error": error.strerror}
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    return {"children": len(children), "error": None}
