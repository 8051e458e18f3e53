//! The filter that tells of every system call but harmless ones.
//!
//! Harmless is a call whose effects are gone when memory and registers are put back, or are seen afterwards. These are
//! positions and flags of descriptors, events that an epoll waits for, mappings. All others are told of, and then made.
//! So a call that a later kernel brings is told of, too.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use crate::error::Unfit;

/// The system calls with these names, laid out by topic. A formatter would give each its own line.
macro_rules! calls {
    ($($call:ident)*) => { &[$($call),*] };
}

/// Stands for the verdict that the compiler does not know.
const TOLD: u16 = 0x7e11;

const SYS_FUTEX_WAKE: i64 = 454;
const SYS_FUTEX_WAIT: i64 = 455;
const SYS_FUTEX_REQUEUE: i64 = 456;

/// Harmless with any arguments.
const HARMLESS: &[i64] = calls![
    // what lies in pipes and sockets, and positions in files, is looked at; not what sendmsg's control messages leave
    SYS_read SYS_readv SYS_pread64 SYS_preadv SYS_preadv2 SYS_write SYS_writev SYS_lseek SYS_sendfile
    SYS_sendto SYS_recvfrom SYS_recvmsg
    // a new descriptor that stays is seen
    SYS_accept SYS_accept4 SYS_eventfd2 SYS_pipe2 SYS_epoll_create1
    // files: names and attributes
    SYS_stat SYS_fstat SYS_lstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_access SYS_faccessat SYS_faccessat2
    SYS_getdents64 SYS_getcwd SYS_readlink SYS_readlinkat SYS_getxattr SYS_lgetxattr SYS_fgetxattr
    SYS_readahead
    // waiting
    SYS_select SYS_pselect6 SYS_poll SYS_ppoll SYS_epoll_wait SYS_epoll_pwait SYS_epoll_pwait2 SYS_epoll_ctl
    SYS_nanosleep SYS_clock_nanosleep SYS_pause SYS_sched_yield
    SYS_FUTEX_WAKE SYS_FUTEX_WAIT SYS_FUTEX_REQUEUE
    // mappings are looked at; the pager tells what was freed
    SYS_munmap SYS_mremap SYS_mprotect SYS_mincore
    // sockets: what they are
    SYS_getsockname SYS_getpeername SYS_getsockopt
    // its end, and that of a thread, are seen
    SYS_exit SYS_exit_group
    // signals: masks are put back. The end of a handler is not here: it may set another stack for handlers.
    SYS_rt_sigprocmask SYS_rt_sigpending
    // who it is, what time it is
    SYS_getpid SYS_getppid SYS_gettid SYS_getpgid SYS_getpgrp SYS_getsid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid
    SYS_getresuid SYS_getresgid SYS_getgroups SYS_capget SYS_sched_getaffinity SYS_sched_getscheduler
    SYS_sched_getparam SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_getpriority SYS_getrlimit
    SYS_getrusage SYS_getcpu SYS_time SYS_times SYS_gettimeofday SYS_clock_gettime SYS_clock_getres SYS_getitimer
    SYS_uname SYS_sysinfo SYS_getrandom
];

/// Private memory, placed anywhere.
const MMAP_UNWANTED: c_int = !(MAP_PRIVATE
    | MAP_ANONYMOUS
    | MAP_FIXED
    | MAP_FIXED_NOREPLACE
    | MAP_NORESERVE
    | MAP_STACK
    | MAP_POPULATE
    | MAP_DENYWRITE);
/// How a file is opened to be read.
const OPEN_UNWANTED: c_int =
    !(O_CLOEXEC | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_NOCTTY | O_LARGEFILE | O_PATH | 0o100_000);
/// What is asked of a descriptor, and flags that are looked at.
const FCNTL: &[c_int] = &[F_GETFD, F_GETFL, F_SETFD, F_SETFL];
const IOCTL: &[u64] = &[FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ];
/// Advice that changes contents alone.
const ADVICE: &[c_int] = &[
    MADV_WILLNEED,
    MADV_DONTNEED,
    MADV_COLD,
    MADV_PAGEOUT,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
];
/// The same for files: `POSIX_FADV_WILLNEED` and `POSIX_FADV_DONTNEED`. Other advice stays with what is open.
const FILE_ADVICE: &[c_int] = &[POSIX_FADV_WILLNEED, POSIX_FADV_DONTNEED];
/// `FUTEX_WAIT`, `WAKE`, `REQUEUE`, `CMP_REQUEUE`, `WAKE_OP`, and the two with bits. The kernel keeps nothing of them.
const FUTEX: &[c_int] = &[0, 1, 3, 4, 5, 9, 10];
/// Barriers themselves, without registrations for them.
const MEMBARRIER: &[c_int] = &[0, 1, 8, 32, 128];
/// `PR_SET_VMA`: names of mappings are looked at.
const PR_SET_VMA: c_int = 0x5356_4d41;
const PRCTL: &[c_int] = &[PR_SET_VMA, PR_GET_NAME, PR_GET_DUMPABLE, PR_GET_PDEATHSIG];

/// The filter for a process with these descriptors.
///
/// # Errors
/// Returns an error when the filter gets too long: the process has too many descriptors.
pub(crate) fn program(descriptors: &[RawFd]) -> Result<BpfProgram, Unfit> {
    let too_many = |e: &dyn std::fmt::Display| Unfit::Descriptors(format!("no filter covers so many: {e}"));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = HARMLESS.iter().map(|call| (*call, Vec::new())).collect();
    let one_of = |at: u8, mask: u32, values: &[u32]| -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
        let rule = |value: &u32| SeccompRule::new(vec![masked(at, mask, *value)?]);
        values.iter().map(rule).collect()
    };
    let filter = (|| {
        let mut add = |call: i64, found: Vec<SeccompRule>| rules.entry(call).or_default().extend(found);
        add(
            SYS_mmap,
            one_of(
                3,
                (MMAP_UNWANTED | MAP_PRIVATE).cast_unsigned(),
                &[MAP_PRIVATE.cast_unsigned()],
            )?,
        );
        add(SYS_open, one_of(1, OPEN_UNWANTED.cast_unsigned(), &[0])?);
        add(SYS_openat, one_of(2, OPEN_UNWANTED.cast_unsigned(), &[0])?);
        add(SYS_brk, one_of(0, 0xfff, &[0])?);
        add(SYS_madvise, one_of(2, u32::MAX, &unsigned(ADVICE))?);
        add(SYS_fadvise64, one_of(3, u32::MAX, &unsigned(FILE_ADVICE))?);
        add(SYS_futex, one_of(1, 0x7f, &unsigned(FUTEX))?);
        add(SYS_fcntl, one_of(1, u32::MAX, &unsigned(FCNTL))?);
        add(
            SYS_ioctl,
            one_of(
                1,
                u32::MAX,
                &IOCTL.iter().map(|request| *request as u32).collect::<Vec<_>>(),
            )?,
        );
        add(SYS_membarrier, one_of(0, u32::MAX, &unsigned(MEMBARRIER))?);
        add(SYS_prctl, one_of(0, u32::MAX, &unsigned(PRCTL))?);
        // With no new value, these ask for the present one.
        for (call, new) in [(SYS_rt_sigaction, 1), (SYS_sigaltstack, 0), (SYS_prlimit64, 2)] {
            let is_query = SeccompCondition::new(new, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
            add(call, vec![SeccompRule::new(vec![is_query])?]);
        }
        // What was open at the point stays open.
        let others = descriptors.iter().map(|own| {
            let own = u64::from(own.cast_unsigned());
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, own)
        });
        add(SYS_close, vec![SeccompRule::new(others.collect::<Result<_, _>>()?)?]);
        let told = SeccompAction::Trace(u32::from(TOLD));
        let filter = SeccompFilter::new(rules, told, SeccompAction::Allow, TargetArch::x86_64)?;
        BpfProgram::try_from(filter)
    })();
    let mut program = filter.map_err(|e| too_many(&e))?;
    program.iter_mut().for_each(tell);
    Ok(program)
}

/// Turns the verdict that stands for it into "tell".
fn tell(instruction: &mut sock_filter) {
    let returns = (BPF_RET | BPF_K) as u16;
    if instruction.code == returns && instruction.k == SECCOMP_RET_TRACE | u32::from(TOLD) {
        instruction.k = SECCOMP_RET_USER_NOTIF;
    }
}

fn unsigned(values: &[c_int]) -> Vec<u32> {
    values.iter().map(|value| value.cast_unsigned()).collect()
}

/// An argument's lower half, which holds all of a 32-bit one, has this value under this mask.
fn masked(at: u8, mask: u32, value: u32) -> Result<SeccompCondition, seccompiler::BackendError> {
    let operation = SeccompCmpOp::MaskedEq(u64::from(mask));
    SeccompCondition::new(at, SeccompCmpArgLen::Dword, operation, u64::from(value))
}
