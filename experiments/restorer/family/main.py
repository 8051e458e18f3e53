"""A function with a child and a grandchild in a session of its own. Each has a thread, and answers by a socket."""

import json
import os
import socket
import threading
import time

BUFFER = bytearray(range(256)) * 4096


def serve(end, name):
    ticks = [0]

    def tick():
        while True:
            time.sleep(0.05)
            ticks[0] += 1

    threading.Thread(target=tick, daemon=True).start()
    while True:
        asked = end.recv(100)
        if not asked:
            os._exit(0)
        BUFFER[0] = (BUFFER[0] + 1) % 256
        ids = {"pid": os.getpid(), "parent": os.getppid(), "sid": os.getsid(0)}
        said = {"name": name, **ids, "sum": sum(BUFFER) // 1000, "ticks": ticks[0] > 0}
        end.send(json.dumps(said).encode())


ours, theirs = socket.socketpair()
ours2, theirs2 = socket.socketpair()
CHILD = os.fork()
if CHILD == 0:
    ours.close()
    ours2.close()
    if os.fork() == 0:
        os.setsid()
        theirs.close()
        serve(theirs2, "grandchild")
    theirs2.close()
    serve(theirs, "child")
theirs.close()
theirs2.close()


def handler(event, context):
    said = []
    for end in (ours, ours2):
        end.send(b"?")
        said.append(json.loads(end.recv(1000)))
    body = json.dumps({"pid": os.getpid(), "said": said})
    return {"statusCode": 200, "headers": {"content-type": "application/json"}, "body": body}
