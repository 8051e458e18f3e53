"""CPython's heap under stress: small objects of pymalloc's arenas, strings, lists, dicts and cycles from before the
snapshot among new ones, by several threads, through many collections."""

import gc
import random
import threading

OBJECTS, ROUNDS, THREADS = 20_000, 12_000, 3


class Node:
    """Part of a cycle, which only the collector can free."""

    __slots__ = ("seed", "values", "text", "table", "other")

    def __init__(self, seed):
        size = seed % 40 if seed % 100 else seed % 3_000
        self.seed = seed
        self.values = [seed + n for n in range(size)]
        self.text = f"{seed}:" + "x" * (seed % 300)
        self.table = {f"{seed}-{n}": float(seed + n) for n in range(seed % 8)}
        self.other = self

    def is_whole(self):
        seed = self.seed
        return (
            self.other is self
            and self.text == f"{seed}:" + "x" * (seed % 300)
            and all(value == seed + n for n, value in enumerate(self.values))
            and self.table == {f"{seed}-{n}": float(seed + n) for n in range(seed % 8)}
        )


heaps = [[Node(n * THREADS + t) for n in range(OBJECTS)] for t in range(THREADS)]


def churn(heap, seed, wrong):
    draw = random.Random(seed)
    for step in range(ROUNDS):
        at = draw.randrange(OBJECTS)
        if not heap[at].is_whole():
            wrong.append(f"object {at} has changed in round {step}")
            return
        heap[at] = Node(draw.randrange(1 << 20))
        if step % 3_000 == 0:
            gc.collect()


def handler(event, context):
    wrong = []
    threads = [threading.Thread(target=churn, args=(heap, n, wrong)) for n, heap in enumerate(heaps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong += [
        f"object {n} has changed in the end" for heap in heaps for n, node in enumerate(heap) if not node.is_whole()
    ]
    if wrong:
        return {"statusCode": 500, "body": wrong[0]}
    return {"statusCode": 200, "body": "allocator: ok"}
