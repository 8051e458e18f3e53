//! The privileges that a confined process drops.

use std::io;

use caps::CapSet;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Pid, Uid, setgroups, setresgid, setresuid};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter, sock_filter};

use crate::order::{Order, USER, Work};

/// Maximum bytes that a function, or a program that installs its dependencies, may lock in memory.
pub const MEMLOCK: u64 = 64 << 10;
/// Maximum bytes of POSIX message queues.
pub const MESSAGE_QUEUES: u64 = 800 << 10;
const OPEN_FILES: u64 = 4096;
/// Address space for unpacking in bytes. Decompressors use windows of 128 MiB at most.
const UNPACKING_MEMORY: u64 = 1 << 30;

/// System calls needed for unpacking: files below its root, memory, and exit.
const UNPACKING: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_getdents64,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_ftruncate,
    libc::SYS_llistxattr,
    libc::SYS_lsetxattr,
    libc::SYS_lremovexattr,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The filter of the work. Programs get the functions' own filter, given as an array of `struct sock_filter`.
pub(crate) fn filter(work: &Work, functions: &[u8]) -> io::Result<BpfProgram> {
    match work {
        Work::Program(_) => Ok(decode_program(functions)),
        Work::Upload { .. } | Work::Image { .. } | Work::Layer { .. } => {
            let rules = UNPACKING.iter().map(|call| (*call, Vec::new())).collect();
            let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
            let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
            let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch);
            filter.and_then(TryInto::try_into).map_err(io::Error::other)
        }
    }
}

/// Decodes an array of `struct sock_filter`, eight bytes each.
#[must_use]
pub fn decode_program(bytes: &[u8]) -> BpfProgram {
    let instruction = |bytes: &[u8]| sock_filter {
        code: u16::from_le_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    bytes.chunks_exact(8).map(instruction).collect()
}

/// Limits the resources of the process and everything it starts. The core limit is 1, as for a function: at 0 the
/// kernel would start the program of `core_pattern` for a crash.
pub(crate) fn limit(work: &Work, crashes_go_to_a_file: bool) -> io::Result<()> {
    match setrlimit(Resource::RLIMIT_CORE, 1, 1) {
        Err(Errno::EPERM) if crashes_go_to_a_file => {}
        other => other?,
    }
    let mut limits = vec![
        (Resource::RLIMIT_NOFILE, OPEN_FILES),
        (Resource::RLIMIT_MEMLOCK, MEMLOCK),
        (Resource::RLIMIT_MSGQUEUE, MESSAGE_QUEUES),
        (Resource::RLIMIT_NICE, 0),
        (Resource::RLIMIT_RTPRIO, 0),
    ];
    match work {
        Work::Program(program) => limits.push((Resource::RLIMIT_FSIZE, program.file_bytes)),
        Work::Upload { .. } | Work::Image { .. } | Work::Layer { .. } => {
            limits.push((Resource::RLIMIT_AS, UNPACKING_MEMORY));
        }
    }
    for (resource, most) in limits {
        let (_, hard) = getrlimit(resource)?;
        let most = most.min(hard);
        setrlimit(resource, most, most)?;
    }
    Ok(())
}

/// Enters a separate user namespace, in which no ids exist until the parent has called [`map`].
pub(crate) fn leave_users() -> io::Result<()> {
    setgroups(&[])?;
    Ok(unshare(CloneFlags::CLONE_NEWUSER)?)
}

/// Maps the one user and group of a child that has entered its user namespace.
pub(crate) fn map(child: Pid, order: &Order) -> io::Result<()> {
    let line = format!("{USER} {} 1", order.host_id);
    std::fs::write(format!("/proc/{child}/gid_map"), &line)?;
    std::fs::write(format!("/proc/{child}/uid_map"), &line)
}

/// Becomes that user permanently, without any capability. Capabilities only disappear by themselves when a namespace's
/// root becomes another user, and here nobody is root.
pub(crate) fn become_user() -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
    caps::clear(None, CapSet::Bounding).map_err(io::Error::other)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    for set in [
        CapSet::Ambient,
        CapSet::Inheritable,
        CapSet::Effective,
        CapSet::Permitted,
    ] {
        caps::clear(None, set).map_err(io::Error::other)?;
    }
    nix::sys::prctl::set_no_new_privs()?;
    Ok(())
}

/// Puts the process under the filter.
pub(crate) fn apply(filter: &BpfProgram) -> io::Result<()> {
    apply_filter(filter).map_err(io::Error::other)
}
