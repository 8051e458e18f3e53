"""Keeps a count in memory: it goes on while the instance lives, and starts again where the snapshot was taken in every
restore.

/         counts and answers with the count
/peek     answers without counting
Every answer names the instance's identity: drawn once at start, and again in every restored copy.
"""

import os
import time
import uuid

import rekindle

STEP = int(os.environ.get("COUNTER_STEP", "1"))
started = time.time()
state = {"count": 0, "restores": 0, "identity": str(uuid.uuid4())}


@rekindle.before_snapshot
def note_snapshot():
    print(f"snapshot taken at count {state['count']}")


@rekindle.after_restore
def become_someone_else():
    state["restores"] += 1
    state["identity"] = str(uuid.uuid4())


def handler(event, context):
    if event.get("rawPath") != "/peek":
        state["count"] += STEP
    return {**state, "pid": os.getpid(), "age_s": round(time.time() - started, 3), "request": context.aws_request_id}
