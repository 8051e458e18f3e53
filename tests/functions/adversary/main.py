"""Processes and threads that change, without end and in an order that SEED draws, whatever a checkpoint looks at.

The main process serves; only the others are stopped and killed. Anything that the sandbox refuses is part of the game.
"""

import ctypes
import mmap
import os
import random
import signal
import socket
import threading
import time

SEED = int(os.environ["SEED"])
FOLDERS = ("/tmp", "/dev/shm")
# Where links lead that must never be followed for the function.
BEYOND = ("/proc/1/maps", "/proc/1/mem", "/proc/self/mem", "/proc/501/maps", "/run", "/run/criu", "/etc/shadow",
          "/proc/sys/kernel/core_pattern", "/dev/../proc/1/environ", "/proc/1/root", "/proc/1/cwd", "/proc/1/exe",
          "/dev/kmsg", "/", "/tmp/file-0")
NAMES = [f"file-{n}" for n in range(6)] + [f"folder-{n}" for n in range(3)]
CLONE_FS, CLONE_FILES, CLONE_PARENT = 0x200, 0x400, 0x8000
NR_CLONE = 56
MREMAP_MAYMOVE = 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mremap.restype = libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
main = os.getpid()
# Of /proc/self, and what is written to them.
ENTRIES = (("oom_score_adj", "500"), ("comm", "named"), ("coredump_filter", "0x3f"), ("timerslack_ns", "60000"),
           ("clear_refs", "1"), ("autogroup", "5"), ("attr/current", "x"), ("timens_offsets", "monotonic 1 0"),
           ("uid_map", "0 0 1"))
draw = random.Random(SEED)


def path(rng):
    return f"{rng.choice(FOLDERS)}/{rng.choice(NAMES)}"


def others(rng):
    found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, main)]
    return rng.choice(found) if found else None


class Actor:
    """One loop. Each act may fail."""

    def __init__(self, rng, never=()):
        self.rng, self.held, self.maps, self.sockets, self.children = rng, [], [], [], []
        names = sorted(name for name in vars(Actor) if name.startswith("do_") and name not in {*LEFT_OUT, *never})
        self.acts = [vars(Actor)[name] for name in names]

    def run(self, until=lambda: False):
        while not until():
            self.act()
        # Whoever leaves a child behind makes an orphan of it.
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def act(self):
        try:
            self.rng.choice(self.acts)(self)
        except (OSError, ValueError, BufferError):
            pass
        if self.rng.random() < 0.3:
            time.sleep(self.rng.random() * 0.003)

    def do_rename(self):
        os.rename(path(self.rng), path(self.rng))

    def do_exchange(self):
        # RENAME_EXCHANGE: the two names have each other's file in one step.
        libc.renameat2(-100, path(self.rng).encode(), -100, path(self.rng).encode(), 2)

    def do_link(self):
        os.link(path(self.rng), path(self.rng), follow_symlinks=False)

    def do_lead_beyond(self):
        made = f"{self.rng.choice(FOLDERS)}/made-{os.getpid()}-{threading.get_native_id()}"
        os.symlink(self.rng.choice(BEYOND), made)
        os.rename(made, path(self.rng))

    def do_make(self):
        fd = os.open(path(self.rng), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        os.write(fd, b"its own")
        self.hold(fd)

    def do_make_folder(self):
        os.mkdir(path(self.rng))

    def do_make_fifo(self):
        where = path(self.rng)
        os.mkfifo(where)
        self.hold(os.open(where, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW))

    def do_unlink(self):
        os.unlink(path(self.rng))

    def do_remove_folder(self):
        os.rmdir(path(self.rng))

    def do_chmod(self):
        os.chmod(path(self.rng), self.rng.choice((0o000, 0o400, 0o644, 0o700, 0o755, 0o4755, 0o2777)))

    def do_truncate(self):
        if self.held:
            os.ftruncate(self.rng.choice(self.held), self.rng.randrange(1 << 16))

    def do_open(self):
        flags = self.rng.choice((os.O_RDONLY, os.O_RDWR, os.O_PATH, os.O_DIRECTORY, os.O_WRONLY | os.O_APPEND))
        self.hold(os.open(path(self.rng), flags | os.O_NONBLOCK | os.O_NOFOLLOW))

    def do_close(self):
        if self.held:
            os.close(self.held.pop(self.rng.randrange(len(self.held))))

    def do_lock(self):
        if self.held:
            import fcntl
            fcntl.flock(self.rng.choice(self.held), self.rng.choice((fcntl.LOCK_SH, fcntl.LOCK_EX)) | fcntl.LOCK_NB)

    def do_map(self):
        if self.held and len(self.maps) < 8:
            fd = self.rng.choice(self.held)
            flags = self.rng.choice((mmap.MAP_SHARED, mmap.MAP_PRIVATE))
            self.maps.append(mmap.mmap(fd, 4096, flags=flags, prot=mmap.PROT_READ))

    def do_unmap(self):
        if self.maps:
            self.maps.pop(self.rng.randrange(len(self.maps))).close()

    def do_move_memory(self):
        at = libc.mmap(None, 8192, 3, 0x22, -1, 0)
        at = libc.mremap(at, 8192, 4096 * self.rng.randrange(1, 9), MREMAP_MAYMOVE)
        if at not in (None, ctypes.c_void_p(-1).value):
            libc.munmap(ctypes.c_void_p(at), 4096)

    def do_go(self):
        os.chdir(path(self.rng))

    def do_watch(self):
        fd = libc.inotify_init1(0o2004000)
        if fd >= 0:
            libc.inotify_add_watch(fd, path(self.rng).encode(), 0x302)
            self.hold(fd)

    def do_bind(self):
        bound = socket.socket(socket.AF_UNIX, self.rng.choice((socket.SOCK_STREAM, socket.SOCK_DGRAM)))
        self.sockets.append(bound)
        del self.sockets[:-6]
        bound.bind(path(self.rng))
        bound.listen()

    def do_pipe(self):
        for fd in os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK):
            self.hold(fd)

    def do_send_descriptor(self):
        near, far = socket.socketpair()
        if self.held:
            socket.send_fds(near, [b"x"], [self.rng.choice(self.held)])
        self.sockets += [near, far]
        del self.sockets[:-6]

    def do_write_own_entries(self):
        name, text = self.rng.choice(ENTRIES)
        with open(f"/proc/self/{name}", "w") as entry:
            entry.write(text)

    def do_signal(self):
        pid = others(self.rng)
        if pid and pid != os.getpid():
            os.kill(pid, self.rng.choice((signal.SIGUSR1, signal.SIGCONT, *SIGNALS)))

    def do_fork(self):
        self.had(child(self.rng, lambda rng: Actor(rng, FAMILY).run(ends(rng))))

    def do_fork_orphan(self):
        pid = os.fork()
        if pid == 0:
            child(self.rng, lambda rng: Actor(rng, FAMILY).run(ends(rng)))
            os._exit(0)
        os.waitpid(pid, 0)

    def do_clone(self):
        flags = self.rng.choice((CLONE_FILES, CLONE_FS, CLONE_FILES | CLONE_FS, CLONE_PARENT))
        pid = libc.syscall(NR_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            # Python's state after such a clone is that after a fork but for the table of descriptors.
            time.sleep(self.rng.random() * 0.5)
            os._exit(0)
        self.had(pid)

    def do_spawn(self):
        # posix_spawn is a clone with CLONE_VM and CLONE_VFORK.
        self.had(os.posix_spawn("/bin/sleep", ["sleep", str(self.rng.random())], os.environ))

    def do_reap(self):
        for pid in list(self.children):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                self.children.remove(pid)

    def had(self, pid):
        if pid > 0:
            self.children.append(pid)

    def hold(self, fd):
        self.held.append(fd)
        if len(self.held) > HELD:
            os.close(self.held.pop(0))


def ends(rng):
    end = time.monotonic() + rng.random() * 3
    return lambda: time.monotonic() > end


def child(rng, work):
    """The id of a child that does the work and ends; 0 if there are too many processes."""
    if len(os.listdir("/proc")) > 60 + MOST:
        return 0
    child_rng = random.Random(rng.random())
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            work(child_rng)
        finally:
            os._exit(0)
    return pid


def maybe(chance, *names):
    return set() if draw.random() < chance else set(names)


# Each seed is of another temper: who does everything is never checkpointed.
NAMES_CHANGE = ("do_rename", "do_exchange", "do_link", "do_lead_beyond", "do_unlink", "do_remove_folder", "do_chmod",
                "do_truncate")
LEFT_OUT = set().union(
    maybe(0.15, "do_fork_orphan"), maybe(0.15, "do_clone"), maybe(0.25, "do_watch"),
    maybe(0.3, "do_bind", "do_send_descriptor"), maybe(0.15, "do_signal"), maybe(0.5, "do_fork", "do_spawn"),
    maybe(0.5, *NAMES_CHANGE), maybe(0.3, "do_go"))
SIGNALS = draw.choice(((signal.SIGKILL,), (signal.SIGSTOP, signal.SIGCONT), (signal.SIGKILL, signal.SIGSTOP)))
CHILDREN, THREADS, MOST = draw.randrange(1, 4), draw.randrange(0, 3), draw.randrange(0, 12)
HELD = draw.choice((0, 0, 2, 24))
# Not for threads of the process that serves, nor for children that are to end without leaving any behind.
FAMILY = ("do_fork", "do_fork_orphan", "do_clone", "do_spawn", "do_reap")

signal.signal(signal.SIGUSR1, lambda *_: None)
for n in range(3):
    with open(f"/tmp/file-{n}", "w") as made:
        made.write("its own" * 1000)
    os.symlink(draw.choice(BEYOND), f"/dev/shm/file-{n}")
# What the process that serves has open, mapped, under watch; the others exchange the names of it.
mine = Actor(draw)
if HELD:
    for _ in range(30):
        try:
            draw.choice((Actor.do_open, Actor.do_make, Actor.do_map, Actor.do_pipe, Actor.do_make_fifo))(mine)
        except (OSError, ValueError):
            pass
ballast = draw.randbytes(8 << 20)
for _ in range(CHILDREN):
    child(draw, lambda rng: Actor(rng).run())
for _ in range(THREADS):
    actor = Actor(random.Random(draw.random()), (*FAMILY, "do_go", "do_signal"))
    threading.Thread(target=actor.run, daemon=True).start()
print(f"without {sorted(LEFT_OUT)}; {CHILDREN} children, {THREADS} threads, {HELD} held")


def handler(event, context):
    return {"seed": SEED}
