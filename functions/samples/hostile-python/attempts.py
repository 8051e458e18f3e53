"""The escapes that are tried. Each function is one attempt, named by its path; it returns what it got away with as text, or
raises kernel.Refused (or PermissionError and its like) when it was stopped. Nothing here harms a host it does get out to."""

import errno
import os
import signal
import socket
import stat
import time
from pathlib import Path

from kernel import Refused, buffer, call

OWN_MOUNTS = ("/", "/app", "/tmp", "/proc", "/run", "/dev", "/sys")
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
FORKS = 600
PTRACE_ATTACH, PTRACE_DETACH, WAIT_ALL = 16, 17, 0x40000000

ATTEMPTS = {}


def attempt(function):
    ATTEMPTS[function.__name__.replace("_", "-")] = function
    return function


# --- looking around ---


@attempt
def see_processes():
    """Processes that are neither this function's nor the sandbox's init."""
    strangers = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != "1" and entry.stat().st_uid != os.getuid():
            strangers.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
    return nothing_or(strangers)


@attempt
def see_host_files():
    """Files that only a host has, and ways to its root through /proc."""
    paths = ["/etc/shadow", "/root/.bashrc", "/home", "/boot", "/var/log", "/var/lib/dpkg/status", "/etc/apt", "/etc/machine-id",
             "/etc/ssh", "/usr/bin/apt", "/proc/1/root/etc/passwd", "/proc/1/cwd/etc", "/proc/1/environ", "/proc/1/fd/0", "/proc/1/maps"]
    return nothing_or([path for path in paths if readable(path)])


@attempt
def see_host_mounts():
    """Mounts beside the sandbox's own."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return nothing_or([p for p in points if p not in OWN_MOUNTS and not p.startswith(("/dev/", "/proc/", "/run/", "/sys/"))])


@attempt
def see_interfaces():
    """Network interfaces beside loopback."""
    return nothing_or([name for _, name in socket.if_nameindex() if name != "lo"])


@attempt
def see_host_sockets():
    """TCP listeners and named unix sockets that are not this process's."""
    own = f"{int(os.environ['PORT']):04X}"
    found = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
             if line.split()[3] == "0A" and not line.split()[1].endswith(":" + own)]
    found += [line.split()[7] for line in Path("/proc/net/unix").read_text().splitlines()[1:] if len(line.split()) > 7]
    return nothing_or(found)


@attempt
def read_kernel_memory():
    return nothing_or([path for path in ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/port", "/proc/kallsyms") if readable_bytes(path)])


@attempt
def read_kernel_log():
    return f"{call('syslog', 3, buffer(size=4096), 4096)} bytes"


# --- the network ---


@attempt
def connect_outside():
    """192.0.2.1 is reserved for documentation: a way out shows as a time-out or a refusal from afar."""
    with socket.socket() as sock:
        sock.settimeout(1)
        try:
            sock.connect(("192.0.2.1", 80))
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.EPERM, errno.EACCES):
                raise Refused(f"connect: {errno.errorcode[error.errno]}") from None
            return f"there is a route: {error}"
    return "connected"


@attempt
def connect_to_host_ports():
    """Whatever else answers on loopback."""
    open_ports = []
    for port in list(range(1, 1024)) + [2375, 3000, 5432, 6379, 7070, 8000, 8080, 8081, 8443, 9000, 9090, 9100]:
        if port == int(os.environ["PORT"]):
            continue
        with socket.socket() as sock:
            sock.settimeout(0.2)
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                open_ports.append(str(port))
    return nothing_or(open_ports)


@attempt
def raw_socket():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return "opened"


@attempt
def packet_socket():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    return "opened"


@attempt
def vsock():
    """A guest's line to its hypervisor, and through vhost to others."""
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    return "opened"


# --- other processes ---


@attempt
def signal_init():
    os.kill(1, 0)
    return "may signal pid 1"


@attempt
def ptrace_init():
    call("ptrace", PTRACE_ATTACH, 1, 0, 0)
    os.waitpid(1, WAIT_ALL)  # it stops first
    call("ptrace", PTRACE_DETACH, 1, 0, 0)
    return "attached"


@attempt
def read_memory_of_init():
    return f"{call('process_vm_readv', 1, buffer(), 1, buffer(), 1, 0)} bytes"


# --- privileges ---


@attempt
def become_root():
    got = []
    for name, arguments in (("setuid", (0,)), ("setgid", (0,)), ("setgroups", (1, buffer(0)))):
        try:
            call(name, *arguments)
            got.append(name)
        except Refused:
            pass
    return nothing_or(got)


@attempt
def have_privileges():
    """Capabilities, a missing no_new_privs, a missing seccomp filter, root's uid."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    found = [f"{name}={status[name]}" for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[name], 16)]
    found += [] if status["NoNewPrivs"] == "1" else ["no_new_privs is off"]
    found += [] if status["Seccomp"] == "2" else ["no seccomp filter"]
    found += ["uid 0"] if "0" in status["Uid"].split() or "0" in status["Gid"].split() else []
    return nothing_or(found)


@attempt
def find_setuid_programs():
    found = []
    for folder, _, names in os.walk("/usr"):
        for name in names:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                found.append(os.path.join(folder, name))
    return nothing_or(found)


@attempt
def capset():
    call("capset", buffer(0x20080522, 0), buffer(0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    return "all capabilities"


@attempt
def unshare_user_namespace():
    # From a process of one thread: of others the kernel refuses this whoever asks.
    return in_child(lambda: call("unshare", CLONE_NEWUSER), "in a new user namespace")


@attempt
def unshare_mount_namespace():
    call("unshare", CLONE_NEWNS)
    return "in a new mount namespace"


@attempt
def clone_into_user_namespace():
    """clone3 hides its flags from seccomp behind a pointer, so it must not be there at all."""
    args = buffer(CLONE_NEWUSER & 0xFFFFFFFF, 0, size=88)
    args[32] = signal.SIGCHLD  # exit_signal
    pid = call("clone3", args, 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "made a process in a new user namespace"


@attempt
def clone_by_flags_into_user_namespace():
    """The older call, whose flags a filter can see."""
    pid = call("clone", CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "made a process in a new user namespace"


@attempt
def open_socket_to_the_hypervisor():
    call("socket", 40, socket.SOCK_STREAM, 0)  # AF_VSOCK
    return "got a socket"


@attempt
def enter_namespaces_of_init():
    got = []
    for kind in ("mnt", "net", "pid", "user"):
        try:
            call("setns", os.open(f"/proc/1/ns/{kind}", os.O_RDONLY), 0)
            got.append(kind)
        except (Refused, OSError):
            pass
    return nothing_or(got)


# --- the file system ---


@attempt
def mount_tmpfs():
    call("mount", b"none", b"/tmp", b"tmpfs", 0, 0)
    return "mounted"


@attempt
def remount_root_writable():
    call("mount", b"none", b"/", 0, 32 | 4096, 0)
    return "remounted"


@attempt
def new_mount_interface():
    return f"descriptor {call('fsopen', b'tmpfs', 0)}"


@attempt
def copy_mount_tree():
    return f"descriptor {call('open_tree', -100, b'/', 1)}"


@attempt
def unmount_app():
    call("umount2", b"/app", 2)
    return "unmounted"


@attempt
def change_root():
    """Refused also where the classic way out (chroot below, cd above) would need it."""
    call("chroot", b"/tmp")
    return "changed"


@attempt
def open_by_handle():
    handle = buffer(8, 1, 2, 0)
    return f"descriptor {call('open_by_handle_at', os.open('/', os.O_RDONLY), handle, 0)}"


@attempt
def make_device():
    call("mknod", b"/tmp/sda", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    return "made"


@attempt
def write_root_filesystem():
    paths = ["/etc/passwd", "/usr/bin/python3.11", "/opt/rekindle/python/bootstrap.py", "/app/main.py", "/new", "/app/new", "/usr/new", "/sys/new",
             "/run/new", "/dev/new", "/var/tmp/new"]
    return nothing_or([path for path in paths if writable(path)])


@attempt
def write_kernel_settings():
    paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/ns_last_pid", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/hostname"]
    return nothing_or([path for path in paths if settable(path)] + (["/proc/sysrq-trigger"] if writable("/proc/sysrq-trigger") else []))


@attempt
def write_control_groups():
    return nothing_or([str(path) for path in Path("/sys").rglob("*") if path.name in ("cgroup.procs", "tasks") and writable(str(path))])


@attempt
def fill_tmp():
    """More than fn.toml's tmp = 16 MiB."""
    written = 0
    try:
        with open("/tmp/filler", "wb", buffering=0) as file:
            while written < 64 << 20:
                written += file.write(bytes(1 << 20))
        return f"{written >> 20} MiB"
    except OSError as error:
        raise Refused(f"{errno.errorcode[error.errno]} after {written >> 20} MiB") from None
    finally:
        os.unlink("/tmp/filler")


# --- what exhausts or attacks the kernel ---


@attempt
def fork_bomb():
    """600 processes at once; they only sleep, and are gone afterwards."""
    children = []
    try:
        for _ in range(FORKS):
            pid = os.fork()
            if pid == 0:
                try:
                    time.sleep(20)
                finally:
                    os._exit(0)
            children.append(pid)
        return f"{len(children)} processes"
    except OSError as error:
        raise Refused(f"{errno.errorcode[error.errno]} after {len(children)} processes") from None
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


@attempt
def kernel_keyring():
    return f"keyring {call('keyctl', 0, -3, 1)}"


@attempt
def add_kernel_key():
    return f"key {call('add_key', b'user', b'rekindle', b'x', 1, -3)}"


@attempt
def bpf():
    # BPF_MAP_CREATE of an array map of one entry.
    return f"descriptor {call('bpf', 0, buffer(2, 4, 4, 1), 72)}"


@attempt
def io_uring():
    return f"descriptor {call('io_uring_setup', 1, buffer(size=120))}"


@attempt
def userfaultfd():
    return f"descriptor {call('userfaultfd', 1)}"


@attempt
def perf_events():
    return f"descriptor {call('perf_event_open', buffer(1, 112), 0, -1, -1, 0)}"


@attempt
def load_kernel_module():
    call("init_module", buffer(), 128, b"")
    return "loaded"


@attempt
def kexec():
    call("kexec_load", 0, 0, 0, 0)
    return "unloaded the crash kernel"


@attempt
def reboot():
    """With a magic number that the kernel refuses, after it has looked at the privileges."""
    call("reboot", 1, 2, 3, 0)
    return "called"


@attempt
def port_access():
    call("iopl", 3)
    return "raised"


@attempt
def add_swap():
    call("swapon", b"/tmp/none", 0)
    return "added"


@attempt
def rename_host():
    call("sethostname", b"owned", 5)
    return "renamed"


def nothing_or(found):
    """What was found as text; Refused when that is nothing."""
    if not found:
        raise Refused("nothing found")
    return ", ".join(map(str, found[:20]))


def in_child(action, success):
    """What `action` does in a forked child: `success`, or what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os.write(writer, b"done")
        except Refused as refusal:
            os.write(writer, f"refused {refusal}".encode())
        except OSError as error:
            os.write(writer, f"failed {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        outcome = pipe.read()
    os.waitpid(pid, 0)
    if outcome.startswith("refused "):
        raise Refused(outcome.removeprefix("refused "))
    return success if outcome == "done" else outcome or "the child died"


def readable(path):
    try:
        if os.path.isdir(path):
            return bool(os.listdir(path))
        with open(path, "rb") as file:
            file.read(1)
        return True
    except OSError:
        return False


def readable_bytes(path):
    """Whether `path` gives more than zeros (kallsyms shows zeros to who may not see addresses)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        data = os.read(descriptor, 64)
        return bool(data) and not data.startswith(b"0000000000000000 ")
    except OSError:
        return False
    finally:
        os.close(descriptor)


def writable(path):
    """Whether `path` can be opened for writing, or made; nothing is written to it."""
    existed = os.path.lexists(path)
    try:
        os.close(os.open(path, os.O_WRONLY | (0 if existed else os.O_CREAT), 0o600))
    except OSError:
        return False
    if not existed:
        os.unlink(path)
    return True


def settable(path):
    """Whether a kernel setting can be written: with the value that it has, so nothing changes."""
    try:
        with open(path, "r+b", buffering=0) as file:
            value = file.read()
            file.seek(0)
            file.write(value)
    except OSError:
        return False
    return True
