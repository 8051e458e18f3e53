"""The escapes that are tried. Each function is one attempt, named by its path; it returns what it got away with as
text, or raises kernel.Refused (or PermissionError and its like) when it was stopped. Nothing here harms a host it does
get out to."""

import ctypes
import errno
import os
import signal
import socket
import stat
import struct
import time
from pathlib import Path

from kernel import Refused, buffer, call, raw

OWN_MOUNTS = ("/", "/app", "/etc/hosts", "/etc/resolv.conf", "/tmp", "/proc", "/run", "/dev", "/sys")
CLONE_NEWUSER, CLONE_NEWNS, CLONE_PARENT = 0x10000000, 0x00020000, 0x00008000
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
    paths = ["/etc/shadow", "/root/.bashrc", "/home", "/boot", "/var/log", "/var/lib/dpkg/status", "/etc/apt",
             "/etc/machine-id", "/etc/ssh", "/usr/bin/apt", "/proc/1/root/etc/passwd", "/proc/1/cwd/etc",
             "/proc/1/environ", "/proc/1/fd/0", "/proc/1/maps"]
    return nothing_or([path for path in paths if readable(path)])


@attempt
def see_host_mounts():
    """Mounts beside the sandbox's own."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    elsewhere = ("/dev/", "/proc/", "/run/", "/sys/")
    return nothing_or([p for p in points if p not in OWN_MOUNTS and not p.startswith(elsewhere)])


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
    paths = ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/port", "/proc/kallsyms")
    return nothing_or([path for path in paths if readable_bytes(path)])


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


@attempt
def write_memory_of_init():
    return f"{call('process_vm_writev', 1, buffer(), 1, buffer(), 1, 0)} bytes"


@attempt
def trace_own_child():
    """Even of its own processes: who traces may change what a filter has let pass."""

    def trace():
        call("ptrace", 0, 0, 0, 0)  # PTRACE_TRACEME

    return in_child(trace, "is traced by its parent")


@attempt
def take_descriptor_of_init():
    return f"descriptor {call('pidfd_getfd', call('pidfd_open', 1, 0), 0, 0)}"


@attempt
def compare_with_init():
    """Tells where in the kernel's memory things lie."""
    return f"order {call('kcmp', os.getpid(), 1, 0, 0, 0)}"


@attempt
def advise_memory_of_init():
    return f"{call('process_madvise', call('pidfd_open', 1, 0), buffer(), 1, 21, 0)} bytes"


@attempt
def move_memory_of_init():
    return allowed_of(("move_pages", (1, 0, 0, 0, 0, 0)), ("migrate_pages", (1, 64, buffer(1), buffer(1))))


@attempt
def write_to_processes_by_proc():
    """The memory and the settings of init, by their files."""
    names = ("mem", "oom_score_adj", "comm", "coredump_filter", "clear_refs", "autogroup", "setgroups", "uid_map")
    return nothing_or([f"/proc/1/{name}" for name in names if writable(f"/proc/1/{name}")])


# --- privileges ---


@attempt
def become_root():
    return allowed_of(("setuid", (0,)), ("setgid", (0,)), ("setgroups", (1, buffer(0))))


@attempt
def have_privileges():
    """Capabilities, a missing no_new_privs, a missing seccomp filter, root's uid."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    found = [f"{name}={status[name]}" for name in sets if int(status[name], 16)]
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
def unshare_every_other_namespace():
    kinds = {"cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "pid": 0x20000000, "net": 0x40000000,
             "time": 0x00000080}
    got = []
    for kind, flag in kinds.items():
        try:
            call("unshare", flag)
            got.append(kind)
        except Refused:
            pass
    return nothing_or(got)


@attempt
def socket_families_of_the_kernel():
    """Those with a way to the kernel's own work, and a long list of its defects: keys, ciphers, tunnels, radio,
    blocks."""
    families = {"AF_AX25": 3, "AF_KEY": 15, "AF_PPPOX": 24, "AF_LLC": 26, "AF_CAN": 29, "AF_TIPC": 30,
                "AF_BLUETOOTH": 31, "AF_RXRPC": 33, "AF_ALG": 38, "AF_NFC": 39, "AF_KCM": 41, "AF_QIPCRTR": 42,
                "AF_SMC": 43, "AF_XDP": 44}
    got = []
    for name, family in families.items():
        for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_RAW):
            try:
                os.close(call("socket", family, kind, 0))
                got.append(name)
            except (Refused, OSError) as error:
                if not isinstance(error, Refused):
                    got.append(f"{name} got past the filter: {error}")
                    break
    return nothing_or(got)


@attempt
def socket_pairs_of_every_family():
    """EPERM is the filter's answer. With any other the kernel was asked, and has looked for a module of that family."""
    return got_past_the_filter(("socketpair", (family, kind, 0, buffer()))
                               for family in range(47) if family != socket.AF_UNIX
                               for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET))


@attempt
def protocols_with_a_module_of_their_own():
    """Of the families that are allowed: SCTP, DCCP, UDP-Lite, multipath TCP, SMC, ping, and others' numbers."""
    kinds = [(socket.SOCK_STREAM, protocol) for protocol in (132, 33, 136, 262, 256, 17, 255)]
    kinds += [(socket.SOCK_DGRAM, protocol) for protocol in (136, 33, 132, 1, 58, 6, 115)]
    kinds += [(kind, protocol) for kind in (socket.SOCK_SEQPACKET, 6, 10) for protocol in (0, 132, 33)]
    flags = (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    return got_past_the_filter(("socket", (family, kind | flag, protocol))
                               for family in (socket.AF_INET, socket.AF_INET6)
                               for kind, protocol in kinds for flag in flags)


@attempt
def netlink_to_other_parts_of_the_kernel():
    """All but routes: sockets' states, audit, packet filters, transforms, devices, generic families, ciphers."""
    return got_past_the_filter(("socket", (socket.AF_NETLINK, socket.SOCK_RAW, protocol)) for protocol in range(1, 32))


@attempt
def modules_by_ioctl():
    """A bridge's and a VLAN's, which the kernel looks for before it asks for privileges."""
    with socket.socket() as sock:
        return got_past_the_filter(("ioctl", (sock.fileno(), request, buffer()))
                                   for request in (0x8940, 0x8941, 0x8982, 0x8983, 0x89A0, 0x89A1))


@attempt
def type_into_terminals():
    return got_past_the_filter(("ioctl", (0, request, buffer(1))) for request in (0x5412, 0x541C, 0x541D, 0x5423))


@attempt
def child_of_init():
    """A process beside this one and not below it: no checkpoint of this one would hold it."""
    pid = call("clone", CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return f"process {pid}"


@attempt
def further_system_call_filters():
    """One that allows everything, in a child. A snapshot has the platform's and no other."""
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000), 8)
    program = struct.pack("=HxxxxxxQ", 1, ctypes.addressof(instruction))

    def install():
        for name, arguments in (("seccomp", (1, 0, program)), ("prctl", (22, 2, program, 0, 0)),
                                ("prctl", (59, 1, 0, 0, 0))):
            try:
                call(name, *arguments)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        raise Refused("EINVAL, as of a kernel without filters")

    return in_child(install, "installed")


@attempt
def change_core_limit():
    """It is 1, at which a crash starts no program on the host; at any other one might be. The answer is EINVAL."""
    lines = Path("/proc/self/limits").read_text().splitlines()
    limits = next(line for line in lines if line.startswith("Max core file size"))
    got = [] if limits.split()[4:6] == ["1", "1"] else [limits]
    for soft, hard in ((0, 0), (0, 1), (1, 1)):
        for name, arguments in (("setrlimit", (4, buffer(soft, 0, hard, 0))),
                                ("prlimit64", (0, 4, buffer(soft, 0, hard, 0), 0)),
                                ("prlimit64", (os.getpid(), 4, buffer(soft, 0, hard, 0), 0))):
            try:
                call(name, *arguments)
                got.append(f"{name} to {soft}, {hard}")
            except Refused:
                pass
            except OSError as error:
                if error.errno != errno.EINVAL:
                    got.append(f"{name}: {error}")
    return nothing_or(got)


@attempt
def raise_priority():
    return allowed_of(("setpriority", (0, 0, -5)), ("sched_setscheduler", (0, 1, buffer(50))))


@attempt
def raise_limits():
    """Beyond the hard limits: of files, of locked memory."""
    got = []
    for resource in (7, 8):
        try:
            call("setrlimit", resource, buffer(0, 1, 0, 1))
            got.append(str(resource))
        except Refused:
            pass
    return nothing_or(got)


@attempt
def calls_of_another_architecture():
    """The same calls by their 32-bit numbers, which the filter does not list: int 0x80 in a child, getpid there."""
    code = bytes.fromhex("b814000000cd8089c7b83c0000000f05")  # eax = 20; int 0x80; edi = eax; eax = 60; syscall

    def run():
        import ctypes
        import mmap

        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()

    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(111)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        raise Refused(f"ended by {signal.Signals(os.WTERMSIG(status)).name}")
    return f"answered, exit code {os.WEXITSTATUS(status)}"


@attempt
def calls_of_the_x32_architecture():
    """getpid with the bit of the other convention."""
    return f"process {raw(0x40000000 | 39)}"


@attempt
def calls_newer_than_the_filter():
    got = []
    for number in (463, 470, 500, 1000):
        try:
            got.append(f"{number}: {raw(number)}")
        except Refused:
            pass
    return nothing_or(got)


@attempt
def personality_without_random_addresses():
    call("personality", 0x0040000)
    return "set"


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
def change_root_by_pivot():
    call("pivot_root", b"/tmp", b"/tmp")
    return "changed"


@attempt
def move_and_change_mounts():
    return allowed_of(("move_mount", (-100, b"/app", -100, b"/tmp", 0)),
                      ("mount_setattr", (-100, b"/", 0, buffer(size=32), 32)),
                      ("fsmount", (0, 0, 0)), ("statmount", (buffer(), buffer(), 128, 0)))


@attempt
def name_files_by_handle():
    return f"handle {call('name_to_handle_at', -100, b'/', buffer(64), buffer(), 0)}"


@attempt
def watch_all_files():
    return f"descriptor {call('fanotify_init', 0, 0)}"


@attempt
def run_set_user_id_file():
    """A program with the bit that root would have to own; /tmp is mounted without it, and nobody may give files
    away."""
    path = "/tmp/become"
    try:
        Path(path).write_bytes(b"#!/bin/sh\n")
        os.chmod(path, 0o6755)
        os.chown(path, 0, 0)
        return "owned by root"
    finally:
        os.unlink(path)


@attempt
def open_by_handle():
    handle = buffer(8, 1, 2, 0)
    return f"descriptor {call('open_by_handle_at', os.open('/', os.O_RDONLY), handle, 0)}"


@attempt
def make_device():
    got = []
    kinds = ((stat.S_IFBLK, 8, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 10, 229), (stat.S_IFCHR, 10, 232))
    for kind, major, minor in kinds:
        try:
            call("mknod", b"/tmp/device", kind | 0o666, os.makedev(major, minor))
            got.append(f"{major}:{minor}")
        except Refused:
            pass
    return nothing_or(got)


@attempt
def find_devices():
    """Devices beside the five that do nothing, the terminal of the session, and the standard streams."""
    harmless = {"null", "zero", "full", "random", "urandom", "tty"}
    found = [entry.path for entry in os.scandir("/dev") if entry.name not in harmless
             and stat.S_IFMT(os.lstat(entry.path).st_mode) in (stat.S_IFBLK, stat.S_IFCHR)]
    return nothing_or(found)


@attempt
def write_root_filesystem():
    paths = ["/etc/passwd", "/usr/bin/python3.11", "/opt/rekindle/python/bootstrap.py", "/app/main.py", "/new",
             "/app/new", "/usr/new", "/sys/new", "/run/new", "/dev/new", "/var/tmp/new"]
    return nothing_or([path for path in paths if writable(path)])


@attempt
def write_kernel_settings():
    paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/ns_last_pid", "/proc/sys/vm/overcommit_memory",
             "/proc/sys/kernel/hostname"]
    return nothing_or([path for path in paths if settable(path)]
                      + (["/proc/sysrq-trigger"] if writable("/proc/sysrq-trigger") else []))


@attempt
def write_own_settings():
    """What a process may set of itself that would spare it or reach others."""
    found = []
    try:
        Path("/proc/self/oom_score_adj").write_text("-500")
        found.append("oom_score_adj")
    except OSError:
        pass
    # Of a user namespace: there is none of its own.
    found += [name for name in ("uid_map", "gid_map") if settable(f"/proc/self/{name}")]
    return nothing_or(found)


@attempt
def write_network_settings():
    paths = [str(path) for path in Path("/proc/sys/net").rglob("*") if path.is_file()][:400]
    return nothing_or([path for path in paths if settable(path)])


@attempt
def change_network_by_netlink():
    """An address, a link, a route, a rule of the packet filter: each is asked of the kernel, and its answer read."""
    address = bytes([10, 0, 0, 1])
    own = {"RTM_NEWADDR": (0, 20, struct.pack("=BBBBI", 2, 32, 0, 0, 1) + struct.pack("=HH4s", 8, 2, address)),
           "RTM_NEWLINK": (0, 16, struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1)),
           "RTM_NEWROUTE": (0, 24, struct.pack("=BBBBBBBBI", 2, 32, 0, 0, 254, 3, 253, 1, 0)
                            + struct.pack("=HH4s", 8, 1, address)),
           "NFNL_MSG": (12, 10 << 8 | 1, struct.pack("=BBH", 2, 0, 0)), "XFRM_MSG_FLUSHSA": (6, 28, b"\0" * 8),
           "AUDIT_GET": (9, 1000, b"")}
    got = []
    for name, (protocol, kind, body) in own.items():
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
                sock.settimeout(2)
                sock.send(struct.pack("=IHHII", 16 + len(body), kind, 5, 1, 0) + body)  # NLM_F_REQUEST, NLM_F_ACK
                error = struct.unpack_from("=i", sock.recv(4096), 16)[0]
                if error == 0:
                    got.append(name)
        except OSError:
            pass
    return nothing_or(got)


@attempt
def write_control_groups():
    return nothing_or([str(path) for path in Path("/sys").rglob("*")
                       if path.name in ("cgroup.procs", "tasks") and writable(str(path))])


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
def request_kernel_key():
    return f"key {call('request_key', b'user', b'rekindle', 0, 0)}"


@attempt
def set_clocks():
    return allowed_of(("clock_settime", (0, buffer(1, 0, 1, 0))), ("settimeofday", (buffer(1, 0, 1, 0), 0)),
                      ("clock_adjtime", (0, buffer(1, size=256))))


@attempt
def hide_memory():
    """Memory that neither the kernel nor a checkpoint can read."""
    return f"descriptor {call('memfd_secret', 0)}"


@attempt
def local_descriptor_table():
    return f"{call('modify_ldt', 0, buffer(), 128)} bytes"


@attempt
def the_rest_of_the_kernel():
    """What only an administrator needs, by arguments that change nothing where it is allowed."""
    got = []
    calls = (("acct", (0,)), ("swapoff", (b"/tmp/none",)), ("ioperm", (0x80, 1, 0)),
             ("delete_module", (b"none", 0)), ("finit_module", (-1, b"", 0)),
             ("kexec_file_load", (-1, -1, 0, b"", 4)), ("quotactl", (0x800007 << 8 & 0x7FFFFFFF, 0, 0, buffer())),
             ("mbind", (0, 0, 0, 0, 0, 0)), ("process_mrelease", (-1, 0)),
             ("io_uring_enter", (-1, 0, 0, 0, 0, 0)), ("io_uring_register", (-1, 0, 0, 0)))
    for name, arguments in calls:
        try:
            call(name, *arguments)
            got.append(name)
        except Refused:
            pass
        except OSError as error:
            got.append(f"{name} ({errno.errorcode.get(error.errno, error.errno)})")
    return nothing_or(got)


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


def allowed_of(*calls):
    """Those of some system calls, each with its arguments, that are not refused; Refused when all are."""
    got = []
    for name, arguments in calls:
        try:
            call(name, *arguments)
            got.append(name)
        except Refused:
            pass
    return nothing_or(got)


def got_past_the_filter(calls):
    """Those of some system calls that the kernel has looked at, whatever it then said."""
    got = []
    for name, arguments in calls:
        try:
            call(name, *arguments)
            got.append(f"{name}{arguments[:3]}")
        except Refused:
            pass
        except OSError as error:
            got.append(f"{name}{arguments[:3]}: {error}")
    return nothing_or(got)


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
