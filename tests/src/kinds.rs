//! Functions that have much of what restore programs know, and each a handler that tells whether it is as it was.

use serde_json::{Value, json};

/// A function.
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Its code.
    pub code: &'static str,
    /// What its handler returns the first time, in a copy.
    pub says: Value,
}

/// The functions that programs restore.
#[must_use]
pub fn known() -> Vec<Kind> {
    let kind = |name, code, says| Kind { name, code, says };
    let of = |name: &str| format!("{name} 65536, {name} below 65536");
    vec![
        kind(
            "kinds",
            KINDS,
            json!({
                "ticks": true, "pending": true, "locks": [["FLOCK", "0", "EOF"], ["POSIX", "10", "14"]],
                "timer": true, "signal": true, "pipe": "in the pipe", "thread": "to thread", "counter": 7,
                "alarms": true, "ranged": [3, 4], "guarded": [103, 103], "child": "child",
                "rights": ["0000000000000000", "0000000000000000", "1"],
            }),
        ),
        kind(
            "unlinked",
            UNLINKED,
            json!({
                "held": "held", "child": "sparse", "shared": 6, "again": "sparse", "links": true,
                "about": ["0o100640", 0, 8198, 8, 7.25], "named": [1, true], "same": true, "changed": true,
                "pipes": ["", true, ""],
            }),
        ),
        connected(),
        kind(
            "named-pipes",
            NAMED_PIPES,
            json!({
                "held": "held", "room": [1 << 17, 1 << 16], "child": "from the child", "again": "again",
                "broken": true, "ended": "", "flags": [2048, 1, 2], "one": true,
            }),
        ),
        kind(
            "named",
            NAMED,
            json!({
                "served": "served", "abstract": "hello", "mode": "0o140640", "own": true, "event": [true, "new"],
                "mask": 0o22,
            }),
        ),
        sockets(),
        kind("tree", TREE, json!([of("first"), of("second")])),
        kind(
            "memory-file",
            MEMORY_FILE,
            json!({
                "held": ["held", 16384, "/memfd:held (deleted)"], "sealed": ["sealed", true, 0xe], "both": "begun",
                "alone": 7, "counter": 2, "roomy": [1 << 18, 200_000], "ended": ["the end", ""], "owner": true,
            }),
        ),
    ]
}

/// One that is connected to itself.
#[must_use]
pub fn connected() -> Kind {
    Kind {
        name: "connected",
        code: CONNECTED,
        says: json!({
            "thread": "ASKED", "child": "ASKED", "closed": "", "unread": ["three", "two"], "same": true,
            "options": [1, 1], "more": [true],
        }),
    }
}

/// One with sockets that are connected through others.
#[must_use]
pub fn sockets() -> Kind {
    let served = "/tmp/served";
    Kind {
        name: "sockets",
        code: SOCKETS,
        says: json!({
            "named": ["unread", "both", served, served, served], "other": "answered", "abstract": "to abstract",
            "waiting": ["accepted", "to waiting"], "removed": ["removed", false, "/tmp/removed"],
            "relative": ["relative", "relative", "relative"], "gone": ["second", true, true],
            "again": ["again", "anew"],
            "half": ["the rest", "", "back"], "closed": ["left", ""], "shut": [true, true], "told": ["early", "late"],
            "packets": ["one", "two"], "udp": ["datagram", true], "options": [true, true, [1, 7], 9, 16],
            "alone": "connected",
        }),
    }
}

/// One that CRIU restores, with a socket that has a relative name.
#[must_use]
pub fn relative_of_criu() -> Kind {
    Kind {
        name: "relative",
        code: RELATIVE,
        says: json!({"served": "served", "by": "/tmp/relative"}),
    }
}

/// One that CRIU restores.
#[must_use]
pub fn of_criu() -> Kind {
    Kind {
        name: "process",
        code: PROCESS,
        says: json!({"held": true}),
    }
}

/// Threads, a child, timers, signals, locks and descriptors of each kind that programs know.
const KINDS: &str = r#"
import ctypes, fcntl, mmap, os, select, signal, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
timer = libc.timerfd_create(1, os.O_NONBLOCK)
assert libc.timerfd_settime(timer, 0, struct.pack("4q", 1, 0, 0, 1), None) == 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
os.kill(os.getpid(), signal.SIGUSR1)
lock = open("/tmp/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
fcntl.lockf(lock, fcntl.LOCK_EX, 5, 10)
ranged = open("/tmp/ranged", "w")
fcntl.fcntl(ranged, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 3, 4, 0))
signals = libc.signalfd(-1, struct.pack("Q", 1 << (signal.SIGUSR2 - 1)), os.O_NONBLOCK)
reader, writer = os.pipe()
os.write(writer, b"in the pipe")
near, far = socket.socketpair()
near.setblocking(False)
counter = os.eventfd(7)
told = []
threading.Thread(target=lambda: [told.append(far.recv(9)) for _ in iter(int, 1)], daemon=True).start()
alarms = []
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
ticks = []
signal.signal(signal.SIGRTMIN, lambda *_: ticks.append(1))
for _ in range(2):
    posix = ctypes.c_void_p()
    assert libc.timer_create(1, struct.pack("Qii48x", 0, signal.SIGRTMIN, 0), ctypes.byref(posix)) == 0
assert libc.timer_settime(posix, 0, struct.pack("4q", 0, 10**8, 0, 10**8), None) == 0
guarded = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
guarded.write(b"g" * (1 << 16))
libc.madvise(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(guarded)) + 8192), 4096, 102)
down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    poll = select.epoll()
    poll.register(down[0], select.EPOLLIN)
    while poll.poll() and os.read(down[0], 1):
        os.write(up[1], b"child")

def locked():
    with open("/tmp/lock") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return [l.split()[1:] for l in open("/proc/locks") if f" {os.getpid()} " in l]

def held():
    with open("/tmp/ranged", "w") as other:
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
        return struct.unpack("hhqqi", fcntl.fcntl(other, fcntl.F_OFD_GETLK, asked))[2:4]

def handler(event, context):
    os.kill(os.getpid(), signal.SIGUSR2)
    near.send(b"to thread")
    os.write(down[1], b"?")
    before, posix_before = len(alarms), len(ticks)
    time.sleep(0.5)
    return {
        "timer": struct.unpack("Q", os.read(timer, 8))[0] > 0, "signal": os.read(signals, 128)[0] == signal.SIGUSR2,
        "pipe": os.read(reader, 99).decode(), "thread": told[-1].decode(), "counter": os.eventfd_read(counter),
        "alarms": len(alarms) > before,
        "ticks": len(ticks) > posix_before, "pending": signal.SIGUSR1 in signal.sigpending(),
        "locks": sorted([l[0], l[-2], l[-1]] for l in locked()),
        "ranged": held(), "guarded": [guarded[0], guarded[12288]], "child": os.read(up[0], 9).decode(),
        "rights": [l.split()[1] for l in open("/proc/self/status") if l.startswith(("CapPrm", "CapBnd", "NoNewPrivs"))],
    }
"#;

/// Files without names: one never had one, one lost it, one has another by now, one is mapped by two processes. Pipes
/// and a pair of sockets whose other ends are closed.
const UNLINKED: &str = r#"
import mmap, os, socket, tempfile
held = tempfile.TemporaryFile()
held.write(b"held")
held.flush()
number, lost = tempfile.mkstemp()
os.pwrite(number, b"sparse", 8192)
os.fchmod(number, 0o640)
os.utime(number, (5, 7.25))
os.unlink(lost)
again = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
named = os.open("/tmp/first", os.O_CREAT | os.O_RDWR)
os.link("/tmp/first", "/tmp/second")
os.unlink("/tmp/first")
page, gone = tempfile.mkstemp(dir="/dev/shm")
os.ftruncate(page, 4096)
os.unlink(gone)
shared = mmap.mmap(page, 4096)
end_of_input, closed = os.pipe()
os.close(closed)
nobody_reads, broken = os.pipe()
os.close(nobody_reads)
alone, closed = socket.socketpair()
closed.close()
down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    while os.read(down[0], 1):
        shared[0] += 1
        os.write(up[1], os.pread(number, 6, 8192))
before = sorted(os.listdir("/tmp") + os.listdir("/dev/shm"))
changed = os.stat("/dev/shm").st_mtime_ns

def is_broken():
    try:
        os.write(broken, b"?")
    except BrokenPipeError:
        return True

def handler(event, context):
    shared[0] = 5
    os.write(down[1], b"?")
    held.seek(0)
    about = os.fstat(number)
    os.write(named, b"!")
    return {
        "held": held.read().decode(), "child": os.read(up[0], 6).decode(), "shared": shared[0],
        "again": os.pread(again, 6, 8192).decode(),
        "links": os.readlink(f"/proc/self/fd/{number}") == f"{lost} (deleted)",
        "about": [oct(about.st_mode), about.st_nlink, about.st_size, about.st_blocks, about.st_mtime],
        "named": [os.stat("/tmp/second").st_nlink, os.path.samestat(os.fstat(named), os.stat("/tmp/second"))],
        "same": before == sorted(os.listdir("/tmp") + os.listdir("/dev/shm")),
        "changed": os.stat("/dev/shm").st_mtime_ns == changed,
        "pipes": [os.read(end_of_input, 1).decode(), is_broken(), alone.recv(1).decode()],
    }
"#;

/// Named pipes: one with something in it, another room and three open files, one that a child writes to, and two that
/// have lost an end.
const NAMED_PIPES: &str = r#"
import fcntl, os
PLAIN = os.O_ACCMODE | os.O_NONBLOCK
def fifo(name):
    os.mkfifo(f"/tmp/{name}", 0o640)
    return os.open(f"/tmp/{name}", os.O_RDWR)
both = fifo("both")
reads = os.open("/tmp/both", os.O_RDONLY | os.O_NONBLOCK)
writes = os.open("/tmp/both", os.O_WRONLY)
fcntl.fcntl(both, fcntl.F_SETPIPE_SZ, 1 << 17)
os.write(writes, b"held")
shared, down = fifo("shared"), os.pipe()
nobody_reads = fifo("nobody-reads")
broken = os.open("/tmp/nobody-reads", os.O_WRONLY)
os.close(nobody_reads)
nobody_writes = fifo("nobody-writes")
ended = os.open("/tmp/nobody-writes", os.O_RDONLY)
os.close(nobody_writes)
if os.fork() == 0:
    while os.read(down[0], 1):
        os.write(shared, b"from the child")

def is_broken():
    try:
        os.write(broken, b"?")
    except BrokenPipeError:
        return True

def handler(event, context):
    os.write(down[1], b"?")
    held = os.read(reads, 99).decode()
    os.write(both, b"again")
    return {
        "held": held, "room": [fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) for fd in [reads, shared]],
        "child": os.read(shared, 99).decode(), "again": os.read(reads, 99).decode(), "broken": is_broken(),
        "ended": os.read(ended, 99).decode(),
        "flags": [fcntl.fcntl(fd, fcntl.F_GETFL) & PLAIN for fd in [reads, writes, both]],
        "one": os.path.samestat(os.fstat(reads), os.stat("/tmp/both")),
    }
"#;

/// Connections of the function to itself, half read, between threads and with a child. One is closed at the other end.
const CONNECTED: &str = r#"
import os, socket, threading
KEPT = None
listening = socket.socket(socket.AF_INET6)
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("::", 7071))
listening.listen()

def connected():
    ours = socket.create_connection(("127.0.0.1", 7071))
    return ours, listening.accept()[0]

def serve(socket):
    while asked := socket.recv(99):
        socket.send(asked.upper())

ours, theirs = connected()
threading.Thread(target=serve, args=(theirs,), daemon=True).start()
near, far = connected()
near.send(b"one two")
far.send(b"three")
assert far.recv(4) == b"one "
far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
asks, answers = connected()
if os.fork() == 0:
    serve(answers)
answers.close()
left, closed = connected()
closed.close()
names = [s.getsockname()[:2] + s.getpeername()[:2] for s in (ours, near, far)]

def handler(event, context):
    for asking in (ours, asks):
        asking.send(b"asked")
    return {
        "thread": ours.recv(99).decode(), "child": asks.recv(99).decode(), "closed": left.recv(99).decode(),
        "unread": [near.recv(99).decode(), far.recv(99).decode()],
        "same": names == [s.getsockname()[:2] + s.getpeername()[:2] for s in (ours, near, far)],
        "options": [
            far.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            far.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        ],
        "more": [s.getpeername()[1] == 7071 for s in connected()[:1]],
    }
"#;

/// Listens at a path and at an abstract name, and watches a directory by the second of an inotify's watches.
const NAMED: &str = r#"
import ctypes, os, socket, struct, threading
libc = ctypes.CDLL(None, use_errno=True)
listening = socket.socket(socket.AF_UNIX)
listening.bind("/tmp/listening")
os.chmod("/tmp/listening", 0o640)
listening.listen(5)

def serve():
    while True:
        with listening.accept()[0] as connection:
            connection.send(b"served")

threading.Thread(target=serve, daemon=True).start()
abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
abstract.bind("\0abstract")
os.mkdir("/tmp/watched")
inotify = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_rm_watch(inotify, libc.inotify_add_watch(inotify, b"/tmp", 0x100))
watch = libc.inotify_add_watch(inotify, b"/tmp/watched", 0x100)
os.read(inotify, 4096)

def handler(event, context):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("/tmp/listening")
        served = client.recv(9).decode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hello", "\0abstract")
    open("/tmp/watched/new", "w").close()
    seen = os.read(inotify, 4096)
    about = os.stat("/tmp/listening")
    return {
        "served": served, "abstract": abstract.recv(9).decode(), "mode": oct(about.st_mode),
        "own": about.st_uid == os.getuid(),
        "event": [struct.unpack("i", seen[:4])[0] == watch, seen[16:].rstrip(b"\0").decode()], "mask": os.umask(0o22),
    }
"#;

/// Connections through a listening socket: accepted by this process and for another one, waiting, and at a relative
/// name. Others are at a name that was removed, and at those that nobody or another socket listens at by now. Sockets
/// that have not read all, or were shut, and options.
const SOCKETS: &str = include_str!("kinds/sockets.py");

/// Two children, each of which has made a child after both were there. So ids are not in the order of the tree.
const TREE: &str = r#"
import os, socket

def child(name):
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        serve(name, theirs)
        os._exit(0)
    theirs.close()
    return ours

def serve(name, theirs):
    own, below = bytearray(name.encode() * 65536), None
    while asked := theirs.recv(9):
        if asked == b"fork":
            below, answer = child(name + " below"), "forked"
        else:
            answer = f"{own[:len(name)].decode()} {own.count(name.encode())}"
        if below and asked != b"fork":
            below.send(b"?")
            answer += ", " + below.recv(99).decode()
        theirs.send(answer.encode())

children = [child(name) for name in ("first", "second")]
for each in children:
    each.send(b"fork")
    assert each.recv(99) == b"forked"

def handler(event, context):
    for each in children:
        each.send(b"?")
    return [each.recv(99).decode() for each in children]
"#;

/// Memory files: one read from the middle, one that is sealed and opened twice, one that is mapped by two processes.
/// Shared memory without a file, by one process and by two. A pipe with more room, and one whose writer has closed it.
/// Listens on a port, which only sockets of the same user may share.
const MEMORY_FILE: &str = r#"
import fcntl, mmap, os, socket
held = os.memfd_create("held")
os.write(held, b"held" * 4096)
os.lseek(held, 4, 0)
sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
os.write(sealed, b"sealed")
fcntl.fcntl(sealed, 1033, 0xe)
again = os.open(f"/proc/self/fd/{sealed}", os.O_RDONLY)
both = os.memfd_create("both")
os.ftruncate(both, 12288)
mapped = mmap.mmap(both, 12288)
mapped[8192:8197] = b"begun"
alone = mmap.mmap(-1, 1 << 20)
alone[1 << 19] = 7
counter = mmap.mmap(-1, 8192)
counter[4096] = 1
roomy, wide = os.pipe()
fcntl.fcntl(wide, 1031, 1 << 18)
os.write(wide, b"w" * 200000)
ended, writer = os.pipe()
os.write(writer, b"the end")
os.close(writer)
down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    while os.read(down[0], 1):
        counter[4096] += 1
        os.write(up[1], mapped[8192:8197])

def listen():
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(("127.0.0.1", 7070))
    listening.listen()
    return listening

first = listen()

def refused():
    try:
        os.write(sealed, b"?")
    except PermissionError:
        return True

def handler(event, context):
    with listen():
        owner = os.fstat(first.fileno()).st_uid
    os.write(down[1], b"?")
    return {
        "held": [os.read(held, 4).decode(), os.fstat(held).st_size, os.readlink(f"/proc/self/fd/{held}")],
        "sealed": [os.pread(again, 9, 0).decode(), refused(), fcntl.fcntl(sealed, 1034)],
        "both": os.read(up[0], 9).decode(), "alone": alone[1 << 19], "counter": counter[4096],
        "roomy": [fcntl.fcntl(wide, 1032), len(os.read(roomy, 1 << 18))],
        "ended": [os.read(ended, 9).decode(), os.read(ended, 9).decode()], "owner": owner == os.getuid(),
    }
"#;

/// Listens at a relative name, and holds a process by a descriptor. CRIU binds by the whole path.
const RELATIVE: &str = r#"
import os, socket
held = os.pidfd_open(os.getpid())
os.chdir("/tmp")
listening = socket.socket(socket.AF_UNIX)
listening.bind("relative")
listening.listen()

def handler(event, context):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("relative")
        listening.accept()[0].send(b"served")
        return {"served": client.recv(9).decode(), "by": client.getpeername()}
"#;

/// Holds a process by a descriptor, which no program makes.
const PROCESS: &str = r#"
import os
held = os.pidfd_open(os.getpid())

def handler(event, context):
    return {"held": os.readlink(f"/proc/self/fd/{held}").startswith("anon_inode")}
"#;
