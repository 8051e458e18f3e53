//! The system calls that a function may make.
//!
//! A call that is not listed here, or is newer than the list, fails with `ENOSYS`, as on a kernel without it: programs
//! then fall back to an older call. Well-known calls that need privileges fail with `EPERM`, as in the kernel for
//! unprivileged callers. Arguments that are 32 bits wide in the kernel are compared as such, because it ignores the
//! register's upper half.

use libc::*;

use super::tree::{Clause, Condition, Rule, Verdict, argument, upper_half};

/// The system calls with these names, laid out by topic. A formatter would give each its own line.
macro_rules! calls {
    ($($call:ident)*) => { &[$($call),*] };
}

/// One more than the highest number with its own rule. Higher calls are newer, or of the x32 convention.
const KNOWN: usize = 463;

// Calls that the libc crate does not name yet.
const SYS_CREATE_MODULE: i64 = 174;
const SYS_GET_KERNEL_SYMS: i64 = 177;
const SYS_QUERY_MODULE: i64 = 178;
const SYS_IO_PGETEVENTS: i64 = 333;
/// The kernel makes a traced program issue this call. Before 6.14 it was subject to the filter.
const SYS_URETPROBE: i64 = 335;
const SYS_CACHESTAT: i64 = 451;
const SYS_FUTEX_WAKE: i64 = 454;
const SYS_FUTEX_WAIT: i64 = 455;
const SYS_FUTEX_REQUEUE: i64 = 456;
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;

/// Permitted with any arguments.
const ALLOWED: &[i64] = calls![
    // files: descriptors
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_open SYS_openat SYS_openat2 SYS_creat SYS_close SYS_close_range SYS_dup SYS_dup2 SYS_dup3 SYS_fcntl SYS_flock
    SYS_lseek
    SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_copy_file_range SYS_fallocate SYS_truncate SYS_ftruncate
    SYS_fsync SYS_fdatasync SYS_sync SYS_syncfs SYS_sync_file_range SYS_fadvise64 SYS_readahead SYS_CACHESTAT
    // files: names, attributes, directories
    SYS_stat SYS_fstat SYS_lstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_access SYS_faccessat SYS_faccessat2
    SYS_getdents SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdir SYS_mkdirat SYS_rmdir SYS_mknod SYS_mknodat
    SYS_rename SYS_renameat SYS_renameat2 SYS_link SYS_linkat SYS_unlink SYS_unlinkat SYS_symlink SYS_symlinkat
    SYS_readlink SYS_readlinkat SYS_chmod SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_chown SYS_fchown SYS_lchown
    SYS_fchownat SYS_umask SYS_utime SYS_utimes SYS_futimesat SYS_utimensat
    SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr
    SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr
    SYS_inotify_init SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
    // waiting for descriptors, pipes, asynchronous reads
    SYS_select SYS_pselect6 SYS_poll SYS_ppoll SYS_epoll_create SYS_epoll_create1 SYS_epoll_ctl
    SYS_epoll_wait SYS_epoll_pwait SYS_epoll_pwait2 SYS_pipe SYS_pipe2 SYS_eventfd SYS_eventfd2 SYS_signalfd
    SYS_signalfd4 SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime
    SYS_io_destroy SYS_io_submit SYS_io_cancel SYS_io_getevents SYS_IO_PGETEVENTS
    // memory
    SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_pkey_mprotect SYS_pkey_free SYS_msync SYS_mincore
    SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_memfd_create SYS_remap_file_pages SYS_membarrier
    // System V and POSIX objects of the sandbox's own namespace
    SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semtimedop SYS_semctl
    SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl
    SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr
    // sockets, once one exists
    SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_shutdown SYS_getsockname SYS_getpeername
    SYS_getsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg
    // processes and threads
    SYS_fork SYS_vfork SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid
    SYS_getpid SYS_getppid SYS_gettid SYS_set_tid_address SYS_getpgid SYS_setpgid SYS_getpgrp SYS_getsid SYS_setsid
    SYS_pidfd_open SYS_pidfd_send_signal SYS_rseq SYS_set_robust_list SYS_get_robust_list
    SYS_futex SYS_futex_waitv SYS_FUTEX_WAKE SYS_FUTEX_WAIT SYS_FUTEX_REQUEUE SYS_URETPROBE
    // signals
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigsuspend
    SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_sigaltstack SYS_kill SYS_tkill SYS_tgkill SYS_pause
    SYS_restart_syscall
    // identity; without capabilities the kernel changes nothing, but CRIU's last steps run under the filter
    SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_capget SYS_capset
    SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups
    // scheduling and limits
    SYS_sched_yield SYS_sched_setparam SYS_sched_getparam SYS_sched_setscheduler SYS_sched_getscheduler
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_sched_setaffinity
    SYS_sched_getaffinity SYS_sched_setattr SYS_sched_getattr SYS_getpriority SYS_setpriority
    SYS_ioprio_set SYS_ioprio_get SYS_getrlimit SYS_getrusage SYS_getcpu
    // time and information about the system
    SYS_time SYS_times SYS_gettimeofday SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep
    SYS_alarm SYS_getitimer SYS_setitimer
    SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
    SYS_uname SYS_sysinfo SYS_getrandom
];

/// Fail with `EPERM`: no function needs them, and they reach the host, other processes or rarely used parts of the
/// kernel.
const REFUSED: &[i64] = calls![
    // mounts and namespaces
    SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_unshare SYS_setns SYS_open_tree SYS_move_mount
    SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr SYS_STATMOUNT SYS_LISTMOUNT
    // other processes
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_process_mrelease SYS_kcmp
    SYS_pidfd_getfd
    // the kernel itself
    SYS_bpf SYS_perf_event_open SYS_init_module SYS_finit_module SYS_delete_module
    SYS_CREATE_MODULE SYS_GET_KERNEL_SYMS SYS_QUERY_MODULE SYS_kexec_load SYS_kexec_file_load SYS_reboot SYS_syslog
    SYS__sysctl SYS_sysfs SYS_acct SYS_swapon SYS_swapoff SYS_quotactl SYS_quotactl_fd SYS_nfsservctl SYS_lookup_dcookie
    SYS_uselib SYS_ustat SYS_vhangup SYS_fanotify_init SYS_fanotify_mark SYS_name_to_handle_at SYS_open_by_handle_at
    SYS_ioperm SYS_iopl SYS_modify_ldt SYS_settimeofday SYS_clock_settime SYS_adjtimex SYS_clock_adjtime
    SYS_sethostname SYS_setdomainname
    SYS_move_pages SYS_migrate_pages SYS_mbind SYS_set_mempolicy SYS_set_mempolicy_home_node
    // keys outlive the sandbox
    SYS_add_key SYS_request_key SYS_keyctl
    // the pager's own mechanism
    SYS_userfaultfd
    // memory that a snapshot cannot hold
    SYS_memfd_secret
];

// Known calls that fail with `ENOSYS` because they are in no list. Programs try them and do without:
// - clone3: its flags are in memory, which a filter cannot read; C libraries then use clone.
// - io_uring_*: a ring cannot be part of a snapshot. io_setup: all functions of a host would share one number of
//   requests.
// - pkey_alloc: a checkpoint does not hold protection keys. V8 requests one where the processor has them, and a copy of
//   its process could not change its code's protection any more.
// - landlock_*, mseal, map_shadow_stack, lsm_*: a copy would silently lack their effects.
// - get_mempolicy: libnuma concludes from this error that the machine has no NUMA.

/// Decided by their arguments.
const CHECKED: &[(i64, Rule)] = &[
    (SYS_socket, Rule::First(SOCKET, REFUSE)),
    (SYS_socketpair, Rule::First(SOCKET_PAIR, REFUSE)),
    (SYS_setsockopt, Rule::First(SOCKET_OPTION, Verdict::Allow)),
    (SYS_clone, Rule::First(CLONE, REFUSE)),
    (SYS_ioctl, Rule::First(IOCTL, Verdict::Allow)),
    (SYS_prctl, Rule::First(PRCTL, INVALID)),
    (SYS_arch_prctl, Rule::First(ARCH_PRCTL, INVALID)),
    (SYS_personality, Rule::First(PERSONALITY, REFUSE)),
    (SYS_madvise, Rule::First(MADVISE, Verdict::Allow)),
    (SYS_setrlimit, Rule::First(SETRLIMIT, Verdict::Allow)),
    (SYS_prlimit64, Rule::First(PRLIMIT, Verdict::Allow)),
    // The same error as on a kernel without filters: an additional filter would make a snapshot's filters differ from
    // ours. Programs with their own sandbox conclude from it that filters are unavailable.
    (SYS_seccomp, Rule::Always(INVALID)),
];

const REFUSE: Verdict = Verdict::Errno(EPERM);
const INVALID: Verdict = Verdict::Errno(EINVAL);
const ABSENT: Rule = Rule::Always(Verdict::Errno(ENOSYS));

/// A clause that permits calls that meet all conditions.
const fn allow(when: &'static [Condition]) -> Clause {
    Clause {
        when,
        verdict: Verdict::Allow,
    }
}

const fn is(number: u32, values: &'static [u32]) -> Condition {
    Condition {
        word: argument(number),
        mask: u32::MAX,
        values,
    }
}

/// When asked for an unknown family or protocol, the kernel looks for a module, whoever asks. So only requests for what
/// it always has reach it. All others fail with `EPERM`: raw sockets fail with it anyway, programs meet it in other
/// containers, and the kernel never returns it after such a search. Multipath TCP is among them: CRIU cannot checkpoint
/// it, and Go's servers, which ask for it first, then use plain TCP.
const SOCKET: &[Clause] = &[
    allow(&[is(0, &[AF_UNIX as u32])]),
    allow(&[is(0, INET), kind(STREAM), is(2, &[0, IPPROTO_TCP as u32])]),
    allow(&[is(0, INET), kind(DATAGRAM), is(2, &[0, IPPROTO_UDP as u32])]),
    // What C libraries and Go query for addresses and interfaces.
    allow(&[is(0, &[AF_NETLINK as u32]), is(2, &[NETLINK_ROUTE as u32])]),
];
const SOCKET_PAIR: &[Clause] = &[allow(&[is(0, &[AF_UNIX as u32])])];
const INET: &[u32] = &[AF_INET as u32, AF_INET6 as u32];
const STREAM: &[u32] = &[SOCK_STREAM as u32];
const DATAGRAM: &[u32] = &[SOCK_DGRAM as u32];

/// All except programs for a socket. They take memory from a budget of the whole host's, which filters of system calls
/// need, too: without any left no function would start.
const SOCKET_OPTION: &[Clause] = &[Clause {
    when: &[
        is(1, &[SOL_SOCKET as u32]),
        is(
            2,
            &[
                SO_ATTACH_FILTER as u32,
                SO_ATTACH_BPF as u32,
                SO_ATTACH_REUSEPORT_CBPF as u32,
                SO_ATTACH_REUSEPORT_EBPF as u32,
            ],
        ),
    ],
    verdict: REFUSE,
}];

/// The type of a socket without `SOCK_CLOEXEC` and `SOCK_NONBLOCK`, masked as in the kernel.
const fn kind(values: &'static [u32]) -> Condition {
    Condition {
        word: argument(1),
        mask: 0xf,
        values,
    }
}

/// Neither namespaces nor siblings: a function's parent is init, and a sibling would be in no checkpoint.
const CLONE: &[Clause] = &[allow(&[Condition {
    word: argument(0),
    mask: UNWANTED_OF_A_CLONE,
    values: &[0],
}])];
const UNWANTED_OF_A_CLONE: u32 = (CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_PARENT) as u32;

/// All except those that type into a terminal or change how one works, and those of bridges and VLANs. For the latter,
/// the kernel looks for a module before it checks permissions.
const IOCTL: &[Clause] = &[Clause {
    when: &[is(1, REFUSED_REQUESTS)],
    verdict: REFUSE,
}];
const REFUSED_REQUESTS: &[u32] = &[
    TIOCSTI as u32,
    TIOCLINUX as u32,
    TIOCCONS as u32,
    TIOCSETD as u32,
    0x8940, // SIOCGIFBR
    0x8941, // SIOCSIFBR
    0x89a0, // SIOCBRADDBR
    0x89a1, // SIOCBRDELBR
    0x8982, // SIOCGIFVLAN
    0x8983, // SIOCSIFVLAN
];

/// Options that a checkpoint preserves, queries, and options that CRIU sets in its last steps under the filter
/// (`PR_SET_SECUREBITS`, `PR_CAPBSET_DROP`: the kernel denies them to a function). These are not permitted: further
/// filters, dispatch of system calls and `PR_SET_TSC`, whose state is in no snapshot. Nor are `PR_SET_MDWE`, under
/// which CRIU could not put its code into the process, and `PR_SET_MM`. Nor is sharing memory or a core with others
/// (`PR_SET_MEMORY_MERGE`, `PR_SCHED_CORE`).
const PRCTL: &[Clause] = &[allow(&[is(0, PROCESS_OPTIONS)])];
const PROCESS_OPTIONS: &[u32] = &[
    PR_SET_NAME as u32,
    PR_GET_NAME as u32,
    PR_SET_VMA as u32,
    PR_SET_PDEATHSIG as u32,
    PR_GET_PDEATHSIG as u32,
    PR_GET_DUMPABLE as u32,
    PR_SET_DUMPABLE as u32,
    PR_SET_NO_NEW_PRIVS as u32,
    PR_GET_NO_NEW_PRIVS as u32,
    PR_SET_CHILD_SUBREAPER as u32,
    PR_GET_CHILD_SUBREAPER as u32,
    PR_CAPBSET_READ as u32,
    PR_CAPBSET_DROP as u32,
    PR_CAP_AMBIENT as u32,
    PR_GET_SECUREBITS as u32,
    PR_SET_SECUREBITS as u32,
    PR_GET_KEEPCAPS as u32,
    PR_SET_KEEPCAPS as u32,
    PR_SET_TIMERSLACK as u32,
    PR_GET_TIMERSLACK as u32,
    PR_SET_THP_DISABLE as u32,
    PR_GET_THP_DISABLE as u32,
    PR_GET_TID_ADDRESS as u32,
    PR_SET_PTRACER as u32,
    PR_GET_SPECULATION_CTRL as u32,
    PR_GET_TSC as u32,
    PR_MCE_KILL as u32,
    PR_MCE_KILL_GET as u32,
    0x4155_5856, // PR_GET_AUXV
];

/// The base registers, and queries of processor state. Not permitted: requests for AMX, which a copy of the process
/// would lack; faults of `cpuid`; shadow stacks.
const ARCH_PRCTL: &[Clause] = &[allow(&[is(
    0,
    &[
        0x1001, // ARCH_SET_GS
        0x1002, // ARCH_SET_FS
        0x1003, // ARCH_GET_FS
        0x1004, // ARCH_GET_GS
        0x1021, // ARCH_GET_XCOMP_SUPP
        0x1022, // ARCH_GET_XCOMP_PERM
    ],
)])];

/// The usual Linux persona, and the query of the current one.
const PERSONALITY: &[Clause] = &[allow(&[is(0, &[0, 0xffff_ffff])])];

/// The kernel tells the pager that memory was freed before it finds that a file mapping cannot be freed lazily.
/// Restored memory is mapped from a file, so the pager would treat as freed what the program keeps. Allocators then
/// free eagerly instead.
const MADVISE: &[Clause] = &[Clause {
    when: &[is(2, &[MADV_FREE as u32])],
    verdict: INVALID,
}];

/// The core limit stays 1, at which the kernel starts no program for a crash (`spawn`). At 0 it would. The error is
/// `EINVAL`, as for a nonexistent limit: GnuPG lowers this limit at its start, and continues without that only after
/// this error or `ENOSYS`.
const SETRLIMIT: &[Clause] = &[Clause {
    when: &[is(0, CORE)],
    verdict: INVALID,
}];
const PRLIMIT: &[Clause] = &[
    // A query only: the pointer to a new limit is null.
    allow(&[
        is(1, CORE),
        is(2, &[0]),
        Condition {
            word: upper_half(2),
            mask: u32::MAX,
            values: &[0],
        },
    ]),
    Clause {
        when: &[is(1, CORE)],
        verdict: INVALID,
    },
];
const CORE: &[u32] = &[RLIMIT_CORE];

/// The rule of each call by its number. All higher numbers have the last rule.
pub(super) fn table() -> Vec<Rule> {
    let mut table = vec![ABSENT; KNOWN + 1];
    let listed = |calls: &'static [i64], rule| calls.iter().map(move |call| (*call, rule));
    let rules = listed(ALLOWED, Rule::Always(Verdict::Allow))
        .chain(listed(REFUSED, Rule::Always(REFUSE)))
        .chain(CHECKED.iter().copied());
    for (call, rule) in rules {
        table[call as usize] = rule;
    }
    table
}
