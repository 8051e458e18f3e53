"""Bare system calls by number (x86-64), with their outcome as text: what glibc wraps, and what it does not."""

import ctypes
import errno

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

NUMBERS = {
    "socket": 41, "clone": 56, "ptrace": 101, "syslog": 103, "setuid": 105, "setgid": 106, "setgroups": 116, "capset": 126, "mknod": 133, "personality": 135,
    "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "sethostname": 170, "iopl": 172,
    "init_module": 175, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
    "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "clone3": 435, "mount_setattr": 442,
}


class Refused(Exception):
    """The kernel or the seccomp filter said no: EPERM, EACCES, ENOSYS, or for files EROFS, ENOENT."""


def call(name, *arguments):
    """Makes system call `name`; its result. Raises Refused when it is not permitted, OSError for any other failure: the call
    then got past every check, to where its arguments were looked at."""
    converted = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = _libc.syscall(ctypes.c_long(NUMBERS[name]), *converted)
    if result == -1:
        number = ctypes.get_errno()
        if number in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise Refused(f"{name}: {errno.errorcode[number]}")
        raise OSError(number, f"{name}: {errno.errorcode.get(number, number)}")
    return result


def buffer(*words, size=128):
    """A zeroed structure that begins with these 32-bit words."""
    raw = ctypes.create_string_buffer(size)
    for index, word in enumerate(words):
        raw[index * 4:index * 4 + 4] = word.to_bytes(4, "little")
    return raw
