"""A process with a function's rights and a bit of everything that functions have open. Says "ready" on its standard
output."""

import ctypes
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

UID = 100_001
libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def give_up_rights():
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    for capability in range(64):
        if libc.prctl(24, capability, 0, 0, 0) < 0:  # PR_CAPBSET_DROP
            break
    check(libc.prctl(47, 4, 0, 0, 0), "ambient")  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    # One instruction: all is allowed.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000), 8)
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(program)), 16)
    check(libc.prctl(22, 2, fprog, 0, 0), "seccomp")
    check(libc.prctl(4, 1, 0, 0, 0), "dumpable")


def open_everything():
    kept = [open(__file__), open("/dev/null", "r+b"), open("/dev/urandom", "rb"), os.open("/tmp", os.O_RDONLY)]
    written = open("/tmp/written", "w+")
    written.write("content")
    written.flush()
    fcntl.flock(written, fcntl.LOCK_EX)
    ghost = open("/tmp/ghost", "w+")
    ghost.write("gone")
    ghost.flush()
    os.unlink("/tmp/ghost")
    linked = open("/tmp/linked", "w+")
    os.link("/tmp/linked", "/tmp/other-name")
    os.unlink("/tmp/linked")
    kept += [written, ghost, linked]
    reading, writing = os.pipe()
    os.write(writing, b"in the pipe")
    os.mkfifo("/tmp/fifo")
    fifo = os.open("/tmp/fifo", os.O_RDWR)
    os.write(fifo, b"in the fifo")
    kept.append(fifo)
    left, right = socket.socketpair()
    left.send(b"queued")
    socket.send_fds(right, [b"x"], [reading])
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("/tmp/socket")
    listening.listen()
    connected = socket.socket(socket.AF_UNIX)
    connected.connect("/tmp/socket")
    accepted, _ = listening.accept()
    abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    abstract.bind("\0abstract")
    tcp = socket.create_server(("127.0.0.1", 8080), reuse_port=True)
    tcp6 = socket.socket(socket.AF_INET6)
    tcp6.bind(("::", 8081))
    tcp6.listen(1)
    client = socket.create_connection(("127.0.0.1", 8080))
    served, _ = tcp.accept()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 5353))
    unbound = socket.socket()
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    netlink.bind((0, 1))
    kept += [left, right, listening, connected, accepted, abstract, tcp, tcp6, client, served, udp, unbound, netlink]
    poll = select.epoll()
    for fd in (reading, left, tcp, listening):
        poll.register(fd, select.EPOLLIN)
    kept.append(poll)
    kept.append(check(libc.eventfd(3, 0o4000), "eventfd"))
    # Only for a process with one thread in it does the mask of a signal file matter; it is open all the same.
    mask = ctypes.create_string_buffer(128)
    kept.append(check(libc.signalfd(-1, mask, 0), "signalfd"))
    for clock in (0, 1, 7):
        kept.append(check(libc.timerfd_create(clock, 0), "timerfd"))
    notify = check(libc.inotify_init1(0), "inotify")
    check(libc.inotify_add_watch(notify, b"/tmp", 0x100), "watch")
    kept.append(notify)
    memfd = os.memfd_create("anonymous", os.MFD_CLOEXEC)
    os.write(memfd, b"m" * 8192)
    kept += [memfd, mmap.mmap(memfd, 8192), mmap.mmap(-1, 8192), mmap.mmap(written.fileno(), 4)]
    kept.append(mmap.mmap(-1, 65536, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    # What mmap.mmap maps it keeps open.
    template = os.open("/tmp/template", os.O_RDONLY)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    private = libc.mmap(None, 65536, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, template, 0)
    ctypes.memset(private + 4096, 1, 1)
    os.close(template)
    kept.append(os.pidfd_open(os.getpid()))
    signal.setitimer(signal.ITIMER_REAL, 3600, 60)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)
    return kept


def main():
    os.closerange(3, 256)
    os.setsid()
    give_up_rights()
    kept = open_everything()
    for _ in range(2):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    zombie = os.fork()
    if zombie == 0:
        os._exit(3)
    time.sleep(0.1)
    print("ready", flush=True)
    time.sleep(3600)
    return kept, child


main()
