"""Bare system calls by number (x86-64), with their outcome as text: what glibc wraps, and what it does not."""

import ctypes
import errno

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

NUMBERS = {
    "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "ptrace": 101, "syslog": 103, "setuid": 105,
    "setgid": 106, "setgroups": 116, "capset": 126, "mknod": 133, "personality": 135, "setpriority": 141,
    "sched_setscheduler": 144, "modify_ldt": 154, "pivot_root": 155, "prctl": 157, "setrlimit": 160, "chroot": 161,
    "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
    "clock_settime": 227, "mbind": 237, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
    "migrate_pages": 256, "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300,
    "prlimit64": 302, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "seccomp": 317,
    "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "pidfd_open": 434,
    "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447,
    "process_mrelease": 448, "statmount": 457,
}


class Refused(Exception):
    """The kernel or the seccomp filter said no: EPERM, EACCES, ENOSYS, or for files EROFS, ENOENT."""


def call(name, *arguments):
    """Makes system call `name`; its result. Raises Refused when it is not permitted, OSError for any other failure: the
    call then got past every check, to where its arguments were looked at."""
    return raw(NUMBERS[name], *arguments, name=name)


def raw(number, *arguments, name=None):
    """The same by number."""
    converted = [
        ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a
        for a in arguments
    ]
    ctypes.set_errno(0)
    result = _libc.syscall(ctypes.c_long(number), *converted)
    if result == -1:
        error = ctypes.get_errno()
        text = f"{name or number}: {errno.errorcode.get(error, error)}"
        if error in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise Refused(text)
        raise OSError(error, text)
    return result


def buffer(*words, size=128):
    """A zeroed structure that begins with these 32-bit words."""
    raw = ctypes.create_string_buffer(size)
    for index, word in enumerate(words):
        raw[index * 4:index * 4 + 4] = word.to_bytes(4, "little")
    return raw
