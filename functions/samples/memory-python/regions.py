"""Private anonymous memory with known contents, straight from the kernel: mmap, madvise, mremap and munmap by their own
names.

Page `i` of a region holds, in turn, bytes that do not compress, bytes that do, small integers, and zeros, so that a
snapshot of it has every kind of block.
"""

import ctypes
import hashlib
import os

PAGE = 4096
ZEROS = bytes(PAGE)

PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4
MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 0x02, 0x10, 0x20
MADV_DONTNEED = 4
MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2
FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]


def _checked(call, result, bad):
    if result == bad:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def pattern(seed, page):
    """The bytes of page `page` of the region `seed`."""
    kind = page % 4
    if kind == 0:
        return hashlib.shake_256(f"{seed}:{page}".encode()).digest(PAGE)
    if kind == 1:
        return hashlib.sha256(f"{seed}:{page}".encode()).digest() * (PAGE // 32)
    if kind == 2:
        return b"".join((page * 512 + i).to_bytes(8, "little") for i in range(PAGE // 8))
    return ZEROS


class Region:
    """`pages` pages of private anonymous memory, filled with the pattern of `seed`."""

    def __init__(self, seed, pages):
        self.seed, self.pages = seed, pages
        self.address = map_anonymous(pages)
        self.fill(0, pages)

    def fill(self, first, end):
        """Writes the pattern to pages first..end. Pages of zeros are written too."""
        for page in range(first, end):
            self.write(page, pattern(self.seed, page))

    def write(self, page, data):
        ctypes.memmove(self.address + page * PAGE, data, len(data))

    def read(self, page):
        return ctypes.string_at(self.address + page * PAGE, PAGE)

    def digest(self):
        """SHA-256 over the whole region, read page by page."""
        total = hashlib.sha256()
        for page in range(self.pages):
            total.update(self.read(page))
        return total.hexdigest()

    def wrong_page(self, expected):
        """The first page that does not hold `expected(page)`, or None."""
        for page in range(self.pages):
            if self.read(page) != expected(page):
                return page
        return None

    def own_pattern(self, page):
        return pattern(self.seed, page)


class LibraryData:
    """A file mapped twice, as the dynamic loader maps a library: as code, and privately as data, of which every other
    page is written."""

    def __init__(self, path):
        with open(path, "rb") as file:
            content = file.read()
            self.pages = (len(content) + PAGE - 1) // PAGE
            self.content = content.ljust(self.pages * PAGE, b"\0")
            map_file(file.fileno(), self.pages, PROT_READ | PROT_EXEC)
            self.address = map_file(file.fileno(), self.pages, PROT_READ | PROT_WRITE)
        self.write()

    def write(self):
        for page in range(0, self.pages, 2):
            ctypes.memmove(self.address + page * PAGE, b"written", 7)

    def read(self, page):
        return ctypes.string_at(self.address + page * PAGE, PAGE)

    def original(self, page):
        return self.content[page * PAGE : (page + 1) * PAGE]

    def own(self, page):
        return self.original(page) if page % 2 else b"written" + self.original(page)[7:]

    def wrong_page(self, expected):
        return next((page for page in range(self.pages) if self.read(page) != expected(page)), None)


def expected_digest(seed, pages):
    """What Region(seed, pages).digest() must be, computed without the region."""
    total = hashlib.sha256()
    for page in range(pages):
        total.update(pattern(seed, page))
    return total.hexdigest()


def map_anonymous(pages, at=None):
    """New zero pages, at `at` (in the place of what is there) or wherever the kernel likes; their address."""
    flags = MAP_PRIVATE | MAP_ANONYMOUS | (MAP_FIXED if at is not None else 0)
    return _checked("mmap", _libc.mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0), FAILED)


def map_file(fd, pages, protection):
    return _checked("mmap", _libc.mmap(None, pages * PAGE, protection, MAP_PRIVATE, fd, 0), FAILED)


def mapped_file(address):
    """The name of the file mapped at `address`."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if start <= address < end:
                return " ".join(line.split()[5:])
    return ""


def unmap(address, pages):
    _checked("munmap", _libc.munmap(address, pages * PAGE), -1)


def drop(address, pages):
    """madvise(MADV_DONTNEED)."""
    _checked("madvise", _libc.madvise(address, pages * PAGE, MADV_DONTNEED), -1)


def remap(address, pages, new_pages, to=None):
    """mremap, to `to` (in the place of what is there) or wherever the kernel likes; the new address."""
    flags = MREMAP_MAYMOVE | (MREMAP_FIXED if to is not None else 0)
    return _checked("mremap", _libc.mremap(address, pages * PAGE, new_pages * PAGE, flags, to), FAILED)
