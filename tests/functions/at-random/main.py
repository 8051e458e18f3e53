"""A program whose state SEED draws: memory, descriptors, sockets, timers, signals, threads, and children that have as
much. Once it serves, nothing of it moves."""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import resource
import select
import signal
import socket
import struct
import threading
import traceback

SEED = int(os.environ["SEED"])
PAGE = 4096
# Far from any timer's end during the test, in seconds.
FAR = 3000
BLOCK, REALTIME_SIGNALS = signal.SIG_BLOCK, range(36, 50)
MADV_DONTNEED, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_GUARD_INSTALL = 4, 15, 16, 102
F_ADD_SEALS, SEAL_SHRINK, SEAL_GROW = 1033, 2, 4
PR_SET_NAME = 15
CLOCKS = (0, 1, 7)

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
# Whatever must not be collected.
kept = []


def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result is None or result < 0 or result == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


class Process:
    """What one process has."""

    def __init__(self, rng, depth, name):
        self.rng, self.depth, self.name, self.descriptors, self.count = rng, depth, name, [], 0

    def fresh_name(self):
        self.count += 1
        folder = self.rng.choice(("/tmp", "/dev/shm"))
        return f"{folder}/{self.name}-{self.count}"

    def bound(self, kind):
        """A socket with an address of its own."""
        family, host = self.rng.choice(((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")))
        bound = socket.socket(family, kind)
        while True:
            try:
                bound.bind((host, self.rng.randrange(20_000, 30_000)))
                return bound
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise

    def kept(self, *all_made):
        kept.extend(all_made)
        for made in all_made:
            self.descriptors.append(made if isinstance(made, int) else made.fileno())

    def file(self, flags=os.O_RDWR):
        name = self.fresh_name()
        with open(name, "wb") as made:
            made.write(self.rng.randbytes(self.rng.randrange(1, 5 * PAGE)))
        os.chmod(name, self.rng.choice((0o600, 0o644, 0o750)))
        return name, os.open(name, flags)

    # Memory

    def have_memory(self):
        pages = self.rng.randrange(1, 40)
        shared = self.rng.random() < 0.3
        at = call("mmap", None, pages * PAGE, 3, 0x21 if shared else 0x22, -1, 0)
        for page in range(pages):
            if self.rng.random() < 0.6:
                ctypes.memmove(at + page * PAGE, self.rng.randbytes(PAGE), PAGE)
        if shared:
            return
        protections = (1, 5)
        if self.rng.random() < 0.3:
            page, advice = self.rng.randrange(pages), self.rng.choice((MADV_DONTNEED, MADV_GUARD_INSTALL))
            # Linux has guards since 6.13.
            libc.madvise(at + page * PAGE, PAGE, advice)
            # Code that begins with one keeps a checkpoint from being made.
            protections = (1,) if advice == MADV_GUARD_INSTALL and page == 0 else protections
        if self.rng.random() < 0.3:
            call("madvise", at, pages * PAGE, self.rng.choice((MADV_NOHUGEPAGE, MADV_DONTDUMP)))
        if self.rng.random() < 0.3:
            at = call("mremap", at, pages * PAGE, (pages + self.rng.randrange(1, 9)) * PAGE, 1)
        if self.rng.random() < 0.3:
            call("munmap", at + self.rng.randrange(pages) * PAGE, PAGE)
        elif self.rng.random() < 0.4:
            call("mprotect", at, self.rng.randrange(1, pages + 1) * PAGE, self.rng.choice(protections))

    def have_mapped_file(self):
        name, fd = self.file()
        os.ftruncate(fd, 4 * PAGE)
        flags = self.rng.choice((mmap.MAP_SHARED, mmap.MAP_PRIVATE))
        offset = self.rng.choice((0, PAGE))
        mapped = mmap.mmap(fd, 2 * PAGE, flags=flags, prot=3, offset=offset)
        if self.rng.random() < 0.5:
            mapped[10:20] = self.rng.randbytes(10)
        kept.append(mapped)
        if self.rng.random() < 0.5:
            os.close(fd)
        else:
            self.kept(fd)
        if self.rng.random() < 0.3:
            os.remove(name)

    def have_memory_file(self):
        fd = os.memfd_create(f"of-{self.name}", os.MFD_ALLOW_SEALING | self.rng.choice((0, os.MFD_CLOEXEC)))
        os.write(fd, self.rng.randbytes(self.rng.randrange(1, 3 * PAGE)))
        if self.rng.random() < 0.4:
            mapped = mmap.mmap(fd, 0)
            mapped[0:1] = b"!"
            kept.append(mapped)
        if self.rng.random() < 0.4:
            fcntl.fcntl(fd, F_ADD_SEALS, self.rng.choice((SEAL_SHRINK, SEAL_GROW, SEAL_SHRINK | SEAL_GROW)))
        os.lseek(fd, self.rng.randrange(PAGE), 0)
        self.kept(fd)

    # Descriptors

    def have_file(self):
        flags = self.rng.choice((os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_NONBLOCK))
        name, fd = self.file(flags)
        os.lseek(fd, self.rng.randrange(2 * PAGE), 0)
        if self.rng.random() < 0.5:
            self.kept(os.dup(fd))
        if self.rng.random() < 0.3:
            os.set_inheritable(fd, True)
        if self.rng.random() < 0.3:
            os.rename(name, name + "-renamed") if self.rng.random() < 0.5 else os.remove(name)
        how = self.rng.random()
        if how < 0.2:
            fcntl.flock(fd, self.rng.choice((fcntl.LOCK_SH, fcntl.LOCK_EX)))
        elif how < 0.4 and flags & os.O_ACCMODE == os.O_RDWR:
            fcntl.lockf(fd, fcntl.LOCK_EX, self.rng.randrange(1, 99), self.rng.randrange(99))
        self.kept(fd)

    def have_directory(self):
        name = self.fresh_name()
        os.mkdir(name, self.rng.choice((0o700, 0o755)))
        os.symlink(self.rng.choice(("nowhere", "/proc/1/maps", name)), name + "-link")
        self.kept(os.open(name, os.O_RDONLY | os.O_DIRECTORY))
        if self.rng.random() < 0.3:
            os.chdir(name)

    def have_pipe(self):
        reader, writer = os.pipe2(self.rng.choice((0, os.O_NONBLOCK, os.O_CLOEXEC)))
        if self.rng.random() < 0.3:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, self.rng.choice((PAGE, 1 << 17)))
        os.write(writer, self.rng.randbytes(self.rng.randrange(1, PAGE)))
        ended = self.rng.random()
        if ended < 0.2:
            os.close(writer)
            self.kept(reader)
        else:
            self.kept(reader, writer)

    def have_fifo(self):
        os.mkfifo(self.fresh_name(), 0o640)

    def have_socket_pair(self):
        kind = self.rng.choice((socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET))
        near, far = socket.socketpair(socket.AF_UNIX, kind)
        for one in (near, far):
            for _ in range(self.rng.randrange(3)):
                one.send(self.rng.randbytes(self.rng.randrange(1, 2000)))
        if kind == socket.SOCK_STREAM and self.rng.random() < 0.5:
            near.send(b"half of it is read")
            far.recv(7)
        if self.rng.random() < 0.2:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        near.setblocking(self.rng.random() < 0.5)
        self.kept(near, far)

    def have_named_socket(self):
        kind = self.rng.choice((socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET))
        bound = socket.socket(socket.AF_UNIX, kind)
        bound.bind("\0" + self.fresh_name() if self.rng.random() < 0.5 else self.fresh_name())
        if kind != socket.SOCK_DGRAM:
            bound.listen(self.rng.randrange(1, 20))
        self.kept(bound)

    def have_udp_socket(self):
        bound = self.bound(socket.SOCK_DGRAM)
        if self.rng.random() < 0.4:
            bound.connect((bound.getsockname()[0], 9))
        if self.rng.random() < 0.3:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.kept(bound)

    def have_tcp_socket(self):
        listening = self.bound(socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.rng.random() < 0.3:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.listen(self.rng.randrange(1, 99))
        self.kept(listening)

    def have_connection(self):
        with self.bound(socket.SOCK_STREAM) as listening:
            listening.listen()
            near = socket.socket(listening.family, socket.SOCK_STREAM)
            near.connect(listening.getsockname())
            far = listening.accept()[0]
        for one, other in ((near, far), (far, near)):
            if self.rng.random() < 0.6:
                sent = self.rng.randbytes(self.rng.randrange(2, 20_000))
                one.sendall(sent)
                other.recv(self.rng.randrange(1, len(sent)))
        self.kept(near, far)

    def have_event(self):
        made = os.eventfd(self.rng.randrange(9), self.rng.choice((0, os.EFD_NONBLOCK)))
        self.kept(made)

    def have_timer_file(self):
        timer = call("timerfd_create", self.rng.choice(CLOCKS), self.rng.choice((0, os.O_NONBLOCK)))
        interval = self.rng.choice((0, FAR))
        value = self.rng.choice((0, FAR, 2 * FAR))
        call("timerfd_settime", timer, 0, struct.pack("4q", interval, 5, value, 7 if value else 0), None)
        self.kept(timer)

    def have_signal_file(self):
        mask = sum(1 << (number - 1) for number in self.rng.sample((10, 12, 23, 40), 2))
        self.kept(call("signalfd", -1, struct.pack("Q", mask), self.rng.choice((0, os.O_NONBLOCK))))

    def have_watch(self):
        watch = call("inotify_init1", self.rng.choice((0, os.O_NONBLOCK)))
        name = self.fresh_name()
        os.mkdir(name)
        call("inotify_add_watch", watch, name.encode(), self.rng.choice((0x302, 0x100, 0xFFF)))
        self.kept(watch)

    def have_poll(self):
        poll = select.epoll()
        for fd in self.rng.sample(self.descriptors, min(len(self.descriptors), 4)):
            more = self.rng.choice((0, select.EPOLLET, select.EPOLLONESHOT))
            try:
                poll.register(fd, self.rng.choice((select.EPOLLIN, select.EPOLLOUT | select.EPOLLRDHUP)) | more)
            except OSError:
                pass  # A file, which cannot be polled, or too long a chain.
        self.kept(poll)

    def have_high_number(self):
        if self.descriptors:
            self.kept(fcntl.fcntl(self.rng.choice(self.descriptors), fcntl.F_DUPFD, self.rng.randrange(100, 400)))

    # The rest

    def have_signals(self):
        number = self.rng.choice((signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGHUP))
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, self.rng.choice((signal.SIG_IGN, signal.SIG_DFL, lambda *_: None)))
        pending = self.rng.choice(REALTIME_SIGNALS)
        for _ in range(self.rng.randrange(3)):
            value = ctypes.c_void_p(self.rng.randrange(1 << 31))
            call("sigqueue", os.getpid(), pending, value) if self.rng.random() < 0.5 else os.kill(os.getpid(), pending)

    def have_timer(self):
        made = ctypes.c_void_p()
        signals = struct.pack("Q i i 48x", self.rng.randrange(99), self.rng.choice(REALTIME_SIGNALS), 0)
        call("timer_create", self.rng.choice((0, 1)), signals, ctypes.byref(made))
        if self.rng.random() < 0.8:
            call("timer_settime", made, 0, struct.pack("4q", self.rng.choice((0, FAR)), 0, FAR, 9), None)

    def have_interval_timer(self):
        signal.setitimer(self.rng.choice((signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)), FAR, self.rng.choice((0, FAR)))

    def have_alternate_stack(self):
        at = call("mmap", None, 4 * PAGE, 3, 0x22, -1, 0)
        call("sigaltstack", struct.pack("Q i 4x Q", at, 0, 4 * PAGE), None)

    def have_limits(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.rng.choice((1 << 29, 1 << 30)), 1 << 30))
        resource.setrlimit(resource.RLIMIT_STACK, (self.rng.choice((4 << 20, 8 << 20)), 8 << 20))
        os.umask(self.rng.choice((0o022, 0o027, 0o077)))

    def have_thread(self):
        begun, never, name = threading.Event(), threading.Event(), f"t{self.rng.randrange(999)}".encode()
        blocked = self.rng.sample((signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP), self.rng.randrange(4))
        limit = self.rng.choice((None, FAR))

        def run():
            call("prctl", PR_SET_NAME, name, 0, 0, 0)
            signal.pthread_sigmask(BLOCK, blocked)
            begun.set()
            never.wait(limit)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        begun.wait()

    def have_child(self):
        if self.depth == 2:
            return
        rng, name = random.Random(self.rng.random()), f"{self.name}c{self.count}"
        self.count += 1
        # An orphan in another's session goes by CRIU.
        orphans = ("orphan",) if self.depth == 0 else ()
        how = self.rng.choice(("plain", "plain", "session", "group", *orphans))
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            if how == "session":
                os.setsid()
            elif how == "group":
                os.setpgid(0, 0)
            elif how == "orphan" and os.fork():
                os._exit(0)
            try:
                Process(rng, self.depth + 1, name).have_all(rng.randrange(1, 12))
                os.close(ready)
                os.write(told, b"!")
                os.close(told)
                while True:
                    signal.pause()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(told)
        assert os.read(ready, 1) == b"!", f"{name} has ended"
        os.close(ready)
        if how == "orphan":
            os.waitpid(pid, 0)

    def have_all(self, count):
        all_pieces = sorted(name for name in vars(Process) if name.startswith("have_") and name != "have_all")
        for number in range(count):
            # A fork has none of its parent's threads: they come last.
            left_out = "have_thread" if number < count * 2 // 3 else "have_child"
            pieces = [name for name in all_pieces if name != left_out] + ["have_child"] * (left_out == "have_thread")
            name = self.rng.choice(pieces)
            print(f"{self.name}: {name}", flush=True)
            getattr(self, name)()


# They stay pending, and would end the process in a thread that takes them.
signal.pthread_sigmask(BLOCK, REALTIME_SIGNALS)
Process(random.Random(SEED), 0, "p").have_all(60)


def handler(event, context):
    return SEED
