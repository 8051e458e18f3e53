"""Frees, moves, grows and shares memory the way real programs and their allocators do, and checks every byte of it.

/digest      SHA-256 over 48 MiB that were filled before the snapshot, next to what it must be
/dontneed    MADV_DONTNEED in the middle of a region: reads back as zeros, neighbours untouched
/unmap       munmap in the middle, then new memory at the same address
/grow        mremap to three times the size: the new tail is zero
/move        mremap to another address, then new memory at the old one
/shrink      mremap to half the size
/fork        children that read and write everything, of which the parent must see nothing
/threads     eight threads that read and write interleaved pages at once
/allocator   many large objects freed and made again
/library     the written pages of a library's data, then MADV_DONTNEED: they read back as the file
/all         each of these, /digest last
Every answer is {"check": ..., "ok": true|false, ...}. Each check leaves its region as it found it, so it can be
repeated; the first call after a restore is the one that meets untouched snapshot pages.
"""

import hashlib
import os
import threading

from regions import PAGE, ZEROS, LibraryData, Region, drop, expected_digest, map_anonymous, mapped_file, remap, unmap

BIG_PAGES = 12_288  # 48 MiB
PAGES = 512  # 2 MiB, one for each check
HALF, QUARTER = PAGES // 2, PAGES // 4

big = Region("big", BIG_PAGES)
regions = {name: Region(name, PAGES) for name in ("dontneed", "unmap", "grow", "move", "shrink", "fork", "threads")}
library_data = LibraryData(__file__)
objects = [hashlib.shake_256(bytes([n])).digest(200_000 + n) for n in range(32)]
lock = threading.Lock()


def digest():
    found, expected = big.digest(), expected_digest("big", BIG_PAGES)
    return {"ok": found == expected, "sha256": found, "expected": expected, "bytes": BIG_PAGES * PAGE}


def dontneed():
    region = regions["dontneed"]
    drop(region.address + QUARTER * PAGE, HALF)
    # The second quarter is read first, the third written first: both ways of meeting a dropped page.
    dropped = range(QUARTER, QUARTER + HALF)
    for page in range(HALF, QUARTER + HALF):
        region.write(page, b"new")
    wrong = region.wrong_page(
        lambda page: region.own_pattern(page) if page not in dropped else ZEROS if page < HALF else b"new" + ZEROS[3:]
    )
    region.fill(QUARTER, QUARTER + HALF)
    return verdict(wrong, region)


def unmap_and_map():
    region = regions["unmap"]
    middle = region.address + QUARTER * PAGE
    unmap(middle, HALF)
    map_anonymous(HALF, at=middle)
    fresh = range(QUARTER, QUARTER + HALF)
    wrong = region.wrong_page(lambda page: ZEROS if page in fresh else region.own_pattern(page))
    region.fill(QUARTER, QUARTER + HALF)
    return verdict(wrong, region)


def grow():
    region = regions["grow"]
    region.address = remap(region.address, PAGES, 3 * PAGES)
    region.pages = 3 * PAGES
    wrong = region.wrong_page(lambda page: region.own_pattern(page) if page < PAGES else ZEROS)
    region.fill(PAGES, 3 * PAGES)
    wrong = wrong if wrong is not None else region.wrong_page(region.own_pattern)
    region.address = remap(region.address, 3 * PAGES, PAGES)
    region.pages = PAGES
    return verdict(wrong, region)


def move():
    region = regions["move"]
    # Its pages have not been touched since the restore: they must arrive at the new address.
    old, new = region.address, map_anonymous(PAGES)
    region.address = remap(old, PAGES, PAGES, to=new)
    map_anonymous(PAGES, at=old)
    wrong = region.wrong_page(region.own_pattern)
    region.address = old
    if wrong is None:
        wrong = region.wrong_page(lambda page: ZEROS)
    unmap(old, PAGES)
    region.address = remap(new, PAGES, PAGES, to=old)
    return verdict(wrong, region)


def shrink():
    region = regions["shrink"]
    region.address = remap(region.address, PAGES, HALF)
    region.pages = HALF
    wrong = region.wrong_page(region.own_pattern)
    region.address = remap(region.address, HALF, PAGES)
    region.pages = PAGES
    if wrong is None:
        wrong = region.wrong_page(lambda page: region.own_pattern(page) if page < HALF else ZEROS)
    region.fill(HALF, PAGES)
    return verdict(wrong, region)


def fork():
    region = regions["fork"]
    expected = expected_digest("fork", PAGES)
    children = [_forked(region, number) for number in range(3)]
    # While they run, the parent writes too: neither side may see the other's bytes.
    for page in range(0, PAGES, 3):
        region.write(page, b"parent")
    results = [_collected(child) for child in children]
    def expected_page(page):
        own = region.own_pattern(page)
        return b"parent" + own[6:] if page % 3 == 0 else own

    wrong = region.wrong_page(expected_page)
    region.fill(0, PAGES)
    return {**verdict(wrong, region), "ok": wrong is None and all(found == expected for found, _ in results),
            "children": [{"sha256": found, "pid": pid} for found, pid in results], "expected": expected}


def _forked(region, number):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    # The child: only reads, writes to its own copy, and _exit, so that nothing of the server runs twice.
    found = "the child failed"
    try:
        found = region.digest()
        for page in range(number, PAGES, 2):
            region.write(page, b"child")
            if region.read(page)[:5] != b"child":
                found = f"page {page} did not keep what the child wrote"
    finally:
        os.write(writer, found.encode())
        os._exit(0)


def _collected(child):
    pid, reader = child
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read().decode()
    os.waitpid(pid, 0)
    return found, pid


def threads():
    region, count = regions["threads"], 8
    wrong, barrier = [], threading.Barrier(count)

    def touch(number):
        barrier.wait(timeout=30)
        for page in range(number, PAGES, count):
            if region.read(page) != region.own_pattern(page):
                wrong.append(page)
            region.write(page, number.to_bytes(1, "little"))
        barrier.wait(timeout=30)
        # Then everybody reads everything.
        for page in range(PAGES):
            if region.read(page)[0] != page % count:
                wrong.append(page)

    workers = [threading.Thread(target=touch, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    region.fill(0, PAGES)
    return verdict(wrong[0] if wrong else None, region)


def allocator():
    wrong = None
    for round_number in range(3):
        for n in range(len(objects)):
            if objects[n] != hashlib.shake_256(bytes([n])).digest(200_000 + n):
                wrong = n
            # Freed before the next is made: large objects go back to the kernel and come from it.
            objects[n] = None
            fresh = bytearray(300_000)
            if any(fresh):
                wrong = n
            objects[n] = hashlib.shake_256(bytes([n])).digest(200_000 + n)
    return {"ok": wrong is None, "wrong": wrong}


def library():
    data = library_data
    backing = mapped_file(data.address)
    wrong = data.wrong_page(data.own)
    drop(data.address, data.pages)
    if wrong is None:
        wrong = data.wrong_page(data.original)
    data.write()
    after = data.wrong_page(data.own)
    ok = wrong is None and after is None
    return {"ok": ok, "wrong_page": wrong, "wrong_page_after": after, "mapped_from": backing}


def verdict(wrong, region):
    """The outcome of a check whose first wrong page is `wrong`; whatever happened, the region must be whole again."""
    after = region.wrong_page(region.own_pattern)
    ok = wrong is None and after is None
    return {"ok": ok, "wrong_page": wrong, "wrong_page_after": after, "pages": region.pages}


CHECKS = {
    "dontneed": dontneed, "unmap": unmap_and_map, "grow": grow, "move": move, "shrink": shrink, "fork": fork,
    "threads": threads, "allocator": allocator, "library": library, "digest": digest,
}


def handler(event, context):
    name = (event.get("rawPath") or "/").strip("/")
    with lock:  # The checks change the address space that all requests share.
        if name == "all":
            results = [{"check": check, **run()} for check, run in CHECKS.items()]
            return {"check": "all", "ok": all(result["ok"] for result in results), "results": results}
        if name in CHECKS:
            return {"check": name, **CHECKS[name]()}
    return {"statusCode": 404, "body": {"checks": [*CHECKS, "all"]}}
