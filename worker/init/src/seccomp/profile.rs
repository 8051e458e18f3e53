//! What a function may ask of the kernel.
//!
//! A call that is listed nowhere here, or is newer than the list, is answered `ENOSYS`, as by a kernel without it: programs
//! then take an older way. Well-known calls that need privileges are answered `EPERM`, as the kernel itself answers who has
//! none. Arguments that are 32 bits wide to the kernel are compared as such: it ignores what the register's upper half holds.

use libc::*;

use super::tree::{Clause, Condition, Rule, Verdict, argument, upper_half};

/// The system calls of these names, laid out by subject; a formatter would give each a line.
macro_rules! calls {
    ($($call:ident)*) => { &[$($call),*] };
}

/// One more than the highest number that is judged by itself. Calls above are newer, or of the x32 convention.
const KNOWN: usize = 463;

// Calls that the libc crate does not name yet.
const SYS_CREATE_MODULE: i64 = 174;
const SYS_GET_KERNEL_SYMS: i64 = 177;
const SYS_QUERY_MODULE: i64 = 178;
const SYS_IO_PGETEVENTS: i64 = 333;
/// The kernel makes a traced program call it; before 6.14 it asked the filter.
const SYS_URETPROBE: i64 = 335;
const SYS_CACHESTAT: i64 = 451;
const SYS_FUTEX_WAKE: i64 = 454;
const SYS_FUTEX_WAIT: i64 = 455;
const SYS_FUTEX_REQUEUE: i64 = 456;
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;

/// Allowed whatever the arguments.
const ALLOWED: &[i64] = calls![
    // files: descriptors
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_open SYS_openat SYS_openat2 SYS_creat SYS_close SYS_close_range SYS_dup SYS_dup2 SYS_dup3 SYS_fcntl SYS_flock SYS_lseek
    SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_copy_file_range SYS_fallocate SYS_truncate SYS_ftruncate
    SYS_fsync SYS_fdatasync SYS_sync SYS_syncfs SYS_sync_file_range SYS_fadvise64 SYS_readahead SYS_CACHESTAT
    // files: names, attributes, directories
    SYS_stat SYS_fstat SYS_lstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_access SYS_faccessat SYS_faccessat2
    SYS_getdents SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdir SYS_mkdirat SYS_rmdir SYS_mknod SYS_mknodat
    SYS_rename SYS_renameat SYS_renameat2 SYS_link SYS_linkat SYS_unlink SYS_unlinkat SYS_symlink SYS_symlinkat
    SYS_readlink SYS_readlinkat SYS_chmod SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_chown SYS_fchown SYS_lchown SYS_fchownat
    SYS_umask SYS_utime SYS_utimes SYS_futimesat SYS_utimensat
    SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr
    SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr
    SYS_inotify_init SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
    // waiting for descriptors, pipes, asynchronous reads
    SYS_select SYS_pselect6 SYS_poll SYS_ppoll SYS_epoll_create SYS_epoll_create1 SYS_epoll_ctl
    SYS_epoll_wait SYS_epoll_pwait SYS_epoll_pwait2 SYS_pipe SYS_pipe2 SYS_eventfd SYS_eventfd2 SYS_signalfd SYS_signalfd4
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime
    SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel SYS_io_getevents SYS_IO_PGETEVENTS
    // memory
    SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_pkey_mprotect SYS_pkey_free SYS_msync SYS_mincore
    SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_memfd_create SYS_remap_file_pages SYS_membarrier
    // System V and POSIX objects of the sandbox's own namespace
    SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semtimedop SYS_semctl
    SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl
    SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr
    // sockets, once there is one
    SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_shutdown SYS_getsockname SYS_getpeername
    SYS_setsockopt SYS_getsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg
    // processes and threads
    SYS_fork SYS_vfork SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid
    SYS_getpid SYS_getppid SYS_gettid SYS_set_tid_address SYS_getpgid SYS_setpgid SYS_getpgrp SYS_getsid SYS_setsid
    SYS_pidfd_open SYS_pidfd_send_signal SYS_rseq SYS_set_robust_list SYS_get_robust_list
    SYS_futex SYS_futex_waitv SYS_FUTEX_WAKE SYS_FUTEX_WAIT SYS_FUTEX_REQUEUE SYS_URETPROBE
    // signals
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigsuspend
    SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_sigaltstack SYS_kill SYS_tkill SYS_tgkill SYS_pause SYS_restart_syscall
    // identity; without capabilities the kernel changes nothing, but CRIU's last steps come after the filter
    SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_capget SYS_capset
    SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups
    // scheduling and limits
    SYS_sched_yield SYS_sched_setparam SYS_sched_getparam SYS_sched_setscheduler SYS_sched_getscheduler
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_sched_setaffinity
    SYS_sched_getaffinity SYS_sched_setattr SYS_sched_getattr SYS_getpriority SYS_setpriority SYS_ioprio_set SYS_ioprio_get
    SYS_getrlimit SYS_getrusage SYS_getcpu
    // time and what the system tells of itself
    SYS_time SYS_times SYS_gettimeofday SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep
    SYS_alarm SYS_getitimer SYS_setitimer
    SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete
    SYS_uname SYS_sysinfo SYS_getrandom
];

/// Answered `EPERM`: what no function needs and reaches the host, other processes or the kernel's less trodden parts.
const REFUSED: &[i64] = calls![
    // mounts and namespaces
    SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_unshare SYS_setns SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig
    SYS_fsmount SYS_fspick SYS_mount_setattr SYS_STATMOUNT SYS_LISTMOUNT
    // other processes
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_process_mrelease SYS_kcmp SYS_pidfd_getfd
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
    // the pager's own means
    SYS_userfaultfd
    // memory that a snapshot cannot hold
    SYS_memfd_secret
];

// Known, and answered `ENOSYS` by being in no list. Programs try them and do without:
// - clone3: its flags lie in memory, where a filter cannot look; C libraries then use clone.
// - io_uring_*: no snapshot can be taken of a ring.
// - pkey_alloc: a checkpoint does not hold protection keys. V8 asks for one where the processor has them, and a copy of its
//   process could not change its code's protection any more.
// - landlock_*, mseal, map_shadow_stack, lsm_*: a copy would silently be without what they set.
// - get_mempolicy: libnuma takes that answer for a machine without NUMA.

/// Judged by their arguments.
const CHECKED: &[(i64, Rule)] = &[
    (SYS_socket, Rule::First(SOCKET, REFUSE)),
    (SYS_socketpair, Rule::First(SOCKET_PAIR, REFUSE)),
    (SYS_clone, Rule::First(CLONE, REFUSE)),
    (SYS_ioctl, Rule::First(IOCTL, Verdict::Allow)),
    (SYS_prctl, Rule::First(PRCTL, INVALID)),
    (SYS_arch_prctl, Rule::First(ARCH_PRCTL, INVALID)),
    (SYS_personality, Rule::First(PERSONALITY, REFUSE)),
    (SYS_madvise, Rule::First(MADVISE, Verdict::Allow)),
    (SYS_setrlimit, Rule::First(SETRLIMIT, Verdict::Allow)),
    (SYS_prlimit64, Rule::First(PRLIMIT, Verdict::Allow)),
    // As where the kernel has no filters: another one would make a snapshot's differ from this. Those who bring a sandbox of
    // their own take that answer for its absence.
    (SYS_seccomp, Rule::Always(INVALID)),
];

const REFUSE: Verdict = Verdict::Errno(EPERM);
const INVALID: Verdict = Verdict::Errno(EINVAL);
const ABSENT: Rule = Rule::Always(Verdict::Errno(ENOSYS));

/// A clause that allows what meets all conditions.
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

/// The kernel looks for a module when it is asked for a family or a protocol that it does not have, whoever asks; so nothing
/// gets there but what it always has. Refused ones are `EPERM`: it is what raw sockets are answered anyway, what programs meet
/// in other containers, and no answer that the kernel would give after such a search. Multipath TCP is among them: CRIU cannot
/// checkpoint it, and Go's servers, which ask for it first, take plain TCP then.
const SOCKET: &[Clause] = &[
    allow(&[is(0, &[AF_UNIX as u32])]),
    allow(&[is(0, INET), kind(STREAM), is(2, &[0, IPPROTO_TCP as u32])]),
    allow(&[is(0, INET), kind(DATAGRAM), is(2, &[0, IPPROTO_UDP as u32])]),
    // What C libraries and Go ask for addresses and interfaces.
    allow(&[is(0, &[AF_NETLINK as u32]), is(2, &[NETLINK_ROUTE as u32])]),
];
const SOCKET_PAIR: &[Clause] = &[allow(&[is(0, &[AF_UNIX as u32])])];
const INET: &[u32] = &[AF_INET as u32, AF_INET6 as u32];
const STREAM: &[u32] = &[SOCK_STREAM as u32];
const DATAGRAM: &[u32] = &[SOCK_DGRAM as u32];

/// The type of a socket without `SOCK_CLOEXEC` and `SOCK_NONBLOCK`, masked as the kernel does.
const fn kind(values: &'static [u32]) -> Condition {
    Condition {
        word: argument(1),
        mask: 0xf,
        values,
    }
}

/// Neither a namespace nor a child of one's parent: a function's parent is init, and that child would be in no checkpoint.
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

/// All but those that type into a terminal or change how one works, and those of bridges and VLANs, for which the kernel looks
/// for a module before it asks who wants it.
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

/// What a checkpoint holds, what only asks, and what CRIU sets in its last steps, which come after the filter
/// (`PR_SET_SECUREBITS`, `PR_CAPBSET_DROP`: the kernel refuses them to a function). Not: further filters, dispatch of system
/// calls and `PR_SET_TSC`, whose state is in no snapshot; `PR_SET_MDWE`, under which CRIU could not put its code into the
/// process; `PR_SET_MM`; sharing memory or a core with others (`PR_SET_MEMORY_MERGE`, `PR_SCHED_CORE`).
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

/// The base registers, and questions about processor state. Not: leave to use AMX, which a copy of the process would be
/// without; faults of `cpuid`; shadow stacks.
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

/// The usual Linux persona, and the question which one it is.
const PERSONALITY: &[Clause] = &[allow(&[is(0, &[0, 0xffff_ffff])])];

/// The kernel tells the pager that memory is freed before it finds that it cannot free a mapping of a file lazily, and what
/// restored memory is mapped from is a file: the pager would take for freed what the program keeps. Allocators free at once
/// instead.
const MADVISE: &[Clause] = &[Clause {
    when: &[is(2, &[MADV_FREE as u32])],
    verdict: INVALID,
}];

/// The core limit stays 1, at which the kernel starts no program for a crash (`spawn`); at 0 it would. `EINVAL`, as for a limit
/// that there is not: GnuPG lowers this one when it starts, and goes on without only after that answer or `ENOSYS`.
const SETRLIMIT: &[Clause] = &[Clause {
    when: &[is(0, CORE)],
    verdict: INVALID,
}];
const PRLIMIT: &[Clause] = &[
    // Asking only: no new limit is pointed to.
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

/// The rule of each call by its number. All above the last are answered as the last is.
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
