"""A function that tries to get out. Each path is one attempt (attempts.py says which); / lists them, /all makes them
all.

The answer is {"attempt": ..., "outcome": "refused" | "allowed", "detail": ...}. Every "allowed" is a hole in the
sandbox.

Three more paths end or exhaust the instance rather than answer, and are not part of /all:
/exhaust-memory    allocates beyond the limit     /crash    ends by a signal     /hang    never answers
"""

import errno
import os
import signal
import time

from attempts import ATTEMPTS
from kernel import Refused


def make(name):
    try:
        outcome, detail = "allowed", ATTEMPTS[name]()
    except Refused as refusal:
        outcome, detail = "refused", str(refusal)
    except OSError as error:
        # Any other error number means that the call got past the checks.
        refusals = (errno.EPERM, errno.EACCES, errno.EROFS, errno.EAFNOSUPPORT, errno.ENOSYS)
        outcome = "refused" if error.errno in refusals else "allowed"
        detail = f"{errno.errorcode.get(error.errno, error.errno)}: {error}"
    return {"attempt": name, "outcome": outcome, "detail": detail}


def exhaust_memory():
    kept = []
    while True:
        kept.append(b"\x01" * (1 << 20))


def handler(event, context):
    name = (event.get("rawPath") or "/").strip("/")
    if name in ATTEMPTS:
        return make(name)
    if name == "all":
        return [make(each) for each in ATTEMPTS]
    if name == "exhaust-memory":
        exhaust_memory()
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hang":
        time.sleep(3600)
    return {"attempts": list(ATTEMPTS)}
