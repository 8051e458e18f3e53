use libc::*;

use super::machine::{data, run, word};
use super::profile::table;
use super::tree::{Rule, Verdict, X86_64};
use super::*;

const REFUSED: Verdict = Verdict::Errno(EPERM);
const INVALID: Verdict = Verdict::Errno(EINVAL);
const ABSENT: Verdict = Verdict::Errno(ENOSYS);

/// The profile's verdict, read from its table without the compiler.
fn expected(table: &[Rule], data: &[u8; 64]) -> Verdict {
    let number = word(data, 0) as usize;
    match table.get(number).unwrap_or(table.last().unwrap()) {
        Rule::Always(verdict) => *verdict,
        Rule::First(clauses, otherwise) => clauses
            .iter()
            .find(|clause| {
                let mut conditions = clause.when.iter();
                conditions.all(|c| c.values.contains(&(word(data, c.word) & c.mask)))
            })
            .map_or(*otherwise, |clause| clause.verdict),
    }
}

/// Every value that a clause of this rule compares with, its neighbours, and values that set bits beyond any mask.
fn telling(rule: &Rule) -> Vec<u64> {
    let clauses = match rule {
        Rule::Always(_) => &[][..],
        Rule::First(clauses, _) => clauses,
    };
    let conditions = || clauses.iter().flat_map(|clause| clause.when);
    let values = conditions().flat_map(|c| c.values).chain(&[0, u32::MAX]);
    let near = values.flat_map(|v| [*v, v.wrapping_add(1), v.wrapping_sub(1), v | 0x80000, v | 0x8000_0000]);
    let bits = conditions()
        .filter(|c| c.mask != u32::MAX)
        .flat_map(|c| (0..32).map(|bit| 1 << bit).filter(|bit| bit & c.mask != 0));
    let mut values: Vec<u64> = near.chain(bits).map(u64::from).collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn the_program_answers_every_call_as_the_profile_says() {
    let (program, table) = (Filter::compile().0, table());
    let beyond = [
        0x3fff_ffff,
        0x4000_0000,
        0x4000_0027,
        0x4000_0200,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
    ];
    for number in (0..=600).chain(beyond) {
        let rule = table.get(number as usize).unwrap_or(table.last().unwrap());
        let values = telling(rule);
        for first in &values {
            for second in &values {
                for third in &values {
                    // Includes upper halves, most of which must have no effect.
                    for upper in [0, 1 << 32, 0xffff_ffff << 32] {
                        let data = data(
                            number,
                            X86_64,
                            [*first | upper, *second | upper, *third | upper, 0, 0, 0],
                        );
                        let answer = run(&program, &data).0;
                        assert_eq!(
                            answer,
                            expected(&table, &data).action(),
                            "{number}: {first:#x} {second:#x} {third:#x}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn calls_of_another_architecture_end_the_process() {
    const I386: u32 = 0x4000_0003;
    let program = Filter::compile().0;
    for number in 0..=600 {
        let data = data(number, I386, [0; 6]);
        assert_eq!(run(&program, &data).0, SECCOMP_RET_KILL_PROCESS);
    }
}

/// The kernel runs it for each number at each restore, and compiles all of it.
#[test]
fn the_program_is_short_and_its_tree_shallow() {
    let program = Filter::compile().0;
    let steps = (0..=600).map(|number| run(&program, &data(number, X86_64, [0; 6])).1);
    let (longest, instructions) = (steps.max().unwrap(), program.len());
    assert!(instructions < 256, "{instructions} instructions");
    assert!(longest < 48, "{longest} steps");
}

#[test]
fn the_bytes_are_the_kernel_s_and_the_same_each_time() {
    let bytes = program();
    assert_eq!(bytes, program());
    assert_eq!(bytes.len(), Filter::compile().0.len() * 8);
    // Load the word at 4. If it is this architecture, skip none.
    assert_eq!(bytes[..8], [0x20, 0, 0, 0, 4, 0, 0, 0]);
    assert_eq!(bytes[8..10], [0x15, 0]);
    assert_eq!(bytes[12..16], [0x3e, 0, 0, 0xc0]);
}

/// The program's verdict on a call.
fn answer(call: i64, arguments: &[u64]) -> Verdict {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let data = data(u32::try_from(call).unwrap(), X86_64, all);
    let action = run(&Filter::compile().0, &data).0;
    let known = [Verdict::Allow, REFUSED, INVALID, ABSENT, Verdict::Kill];
    known.into_iter().find(|v| v.action() == action).unwrap()
}

#[test]
fn nothing_is_allowed_that_container_engines_do_not_allow() {
    // All numbers up to 462 that Docker's default profile denies without capabilities on x86-64.
    let singles = [
        103, 134, 136, 139, 153, 212, 227, 236, 246, 248, 249, 250, 256, 272, 279, 298, 300, 304, 308, 312, 313,
    ];
    let more = [155, 156, 320, 321, 323, 435, 438, 440, 442, 443, 450, 457, 458];
    let ranges = (161..=161)
        .chain(163..=185)
        .chain(237..=239)
        .chain(336..=423)
        .chain(428..=433)
        .chain(463..=600);
    for call in ranges.chain(singles).chain(more) {
        assert_ne!(answer(call, &[]), Verdict::Allow, "{call}");
    }
}

/// CRIU installs the filter, then drops the function's privileges, releases its threads, and unmaps itself. (The last
/// step happens while the filter is suspended.)
#[test]
fn what_criu_does_under_the_filter_is_allowed() {
    let calls = [
        SYS_getgroups,
        SYS_setgroups,
        SYS_getresuid,
        SYS_setresuid,
        SYS_setfsuid,
        SYS_getresgid,
        SYS_setresgid,
        SYS_setfsgid,
        SYS_capset,
        SYS_openat,
        SYS_write,
        SYS_close,
        SYS_gettid,
        SYS_getpid,
        SYS_futex,
        SYS_setitimer,
        SYS_timer_create,
        SYS_timer_settime,
        SYS_munmap,
        SYS_gettimeofday,
        SYS_rt_sigprocmask,
        SYS_rt_sigreturn,
        SYS_exit,
        SYS_exit_group,
    ];
    for call in calls {
        assert_eq!(answer(call, &[]), Verdict::Allow, "{call}");
    }
    let options = [
        PR_GET_SECUREBITS,
        PR_SET_SECUREBITS,
        PR_CAPBSET_DROP,
        PR_CAP_AMBIENT,
        PR_SET_NO_NEW_PRIVS,
        PR_GET_DUMPABLE,
        PR_SET_DUMPABLE,
        PR_SET_PDEATHSIG,
        PR_SET_CHILD_SUBREAPER,
    ];
    for option in options {
        assert_eq!(answer(SYS_prctl, &[option as u64]), Verdict::Allow, "{option}");
    }
}

#[test]
fn threads_and_processes_can_be_made_as_runtimes_make_them() {
    let thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD;
    let allowed = [
        SIGCHLD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, // glibc's fork
        SIGCHLD,                                             // musl's
        SIGCHLD | CLONE_VM | CLONE_VFORK,                    // posix_spawn
        SIGCHLD | CLONE_VM | CLONE_VFORK | CLONE_PIDFD,      // Go's
        thread | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, // glibc's threads
        thread | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID | CLONE_DETACHED, // musl's
        thread | CLONE_SETTLS,                               // Go's
    ];
    for flags in allowed {
        assert_eq!(answer(SYS_clone, &[flags as u64]), Verdict::Allow, "{flags:#x}");
    }
    let refused = [
        CLONE_NEWNS,
        CLONE_NEWCGROUP,
        CLONE_NEWUTS,
        CLONE_NEWIPC,
        CLONE_NEWUSER,
        CLONE_NEWPID,
        CLONE_NEWNET,
        CLONE_PARENT,
    ];
    for flag in refused {
        let flags = u64::from((flag | SIGCHLD).cast_unsigned());
        assert_eq!(answer(SYS_clone, &[flags]), REFUSED, "{flag:#x}");
        assert_eq!(
            answer(SYS_clone, &[flags | 0xffff_ffff_0000_0000]),
            REFUSED,
            "{flag:#x}"
        );
    }
    assert_eq!(answer(SYS_clone3, &[]), ABSENT);
}

#[test]
fn sockets_are_those_that_the_kernel_has_without_a_module() {
    let socket =
        |family: i32, kind: i32, protocol: i32| answer(SYS_socket, &[family as u64, kind as u64, protocol as u64]);
    let flags = SOCK_CLOEXEC | SOCK_NONBLOCK;
    for family in [AF_INET, AF_INET6] {
        for (kind, protocol) in [
            (SOCK_STREAM, 0),
            (SOCK_STREAM, IPPROTO_TCP),
            (SOCK_DGRAM, 0),
            (SOCK_DGRAM, IPPROTO_UDP),
        ] {
            assert_eq!(socket(family, kind, protocol), Verdict::Allow);
            assert_eq!(socket(family, kind | flags, protocol), Verdict::Allow);
        }
        let refused = [
            (SOCK_STREAM, IPPROTO_MPTCP),
            (SOCK_STREAM, IPPROTO_SCTP),
            (SOCK_STREAM, 256), // SMC
            (SOCK_SEQPACKET, 0),
            (SOCK_SEQPACKET, IPPROTO_SCTP),
            (SOCK_DCCP, IPPROTO_DCCP),
            (SOCK_DGRAM, IPPROTO_UDPLITE),
            (SOCK_DGRAM, IPPROTO_ICMP),
            (SOCK_DGRAM, IPPROTO_ICMPV6),
            (SOCK_STREAM, IPPROTO_UDP),
            (SOCK_RAW, IPPROTO_ICMP),
            (10, 0), // SOCK_PACKET
        ];
        for (kind, protocol) in refused {
            assert_eq!(socket(family, kind, protocol), REFUSED, "{kind} {protocol}");
            assert_eq!(socket(family, kind | flags, protocol), REFUSED, "{kind} {protocol}");
        }
    }
    assert_eq!(socket(AF_NETLINK, SOCK_RAW | flags, NETLINK_ROUTE), Verdict::Allow);
    for protocol in 1..64 {
        assert_eq!(socket(AF_NETLINK, SOCK_RAW, protocol), REFUSED, "{protocol}");
    }
    for family in 0..64 {
        let unix = if family == AF_UNIX { Verdict::Allow } else { REFUSED };
        assert_eq!(
            answer(SYS_socketpair, &[family as u64, SOCK_STREAM as u64]),
            unix,
            "{family}"
        );
        if ![AF_UNIX, AF_INET, AF_INET6, AF_NETLINK].contains(&family) {
            assert_eq!(socket(family, SOCK_STREAM, 0), REFUSED, "{family}");
        }
    }
    // The kernel looks at 32 bits only.
    assert_eq!(
        answer(SYS_socket, &[1 << 32 | AF_ALG as u64, SOCK_SEQPACKET as u64]),
        REFUSED
    );
    assert_eq!(
        answer(
            SYS_socket,
            &[AF_INET as u64, SOCK_DGRAM as u64, 1 << 32 | IPPROTO_UDPLITE as u64]
        ),
        REFUSED
    );
}

#[test]
fn the_core_limit_can_be_asked_for_and_not_changed() {
    let core = u64::from(RLIMIT_CORE);
    let files = u64::from(RLIMIT_NOFILE);
    assert_eq!(answer(SYS_setrlimit, &[core, 0x1000]), INVALID);
    assert_eq!(answer(SYS_setrlimit, &[1 << 32 | core, 0x1000]), INVALID);
    assert_eq!(answer(SYS_setrlimit, &[files, 0x1000]), Verdict::Allow);
    assert_eq!(answer(SYS_prlimit64, &[0, core, 0, 0x1000]), Verdict::Allow);
    for pointer in [0x1000, 0x7fff_0000_0000, 0x7fff_0000_1000] {
        assert_eq!(answer(SYS_prlimit64, &[0, core, pointer, 0]), INVALID);
        assert_eq!(answer(SYS_prlimit64, &[0, 1 << 32 | core, pointer, 0]), INVALID);
        assert_eq!(answer(SYS_prlimit64, &[0, files, pointer, 0]), Verdict::Allow);
    }
}

#[test]
fn no_further_filter_can_be_installed() {
    for operation in 0..4 {
        assert_eq!(answer(SYS_seccomp, &[operation]), INVALID);
    }
    for option in [
        PR_SET_SECCOMP,
        PR_GET_SECCOMP,
        PR_SET_MM,
        PR_SET_TSC,
        PR_SET_MDWE,
        59,
        PR_SCHED_CORE,
    ] {
        assert_eq!(answer(SYS_prctl, &[option as u64]), INVALID, "{option}");
    }
}

#[test]
fn devices_are_asked_what_programs_ask_and_terminals_are_not_typed_into() {
    for request in [
        FIONREAD,
        FIONBIO,
        FIOCLEX,
        TCGETS,
        TIOCGWINSZ,
        TIOCGPGRP,
        SIOCGIFCONF,
        SIOCGIFFLAGS,
        SIOCGIFINDEX,
    ] {
        assert_eq!(answer(SYS_ioctl, &[0, request]), Verdict::Allow, "{request:#x}");
    }
    for request in [TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS, 0x8940, 0x8982] {
        for upper in [0, 0xffff_ffff_0000_0000] {
            assert_eq!(answer(SYS_ioctl, &[0, request | upper]), REFUSED, "{request:#x}");
        }
    }
}

/// Makes a call whose arguments have no effect even if it is permitted. Returns the error number, or 0 for none.
#[expect(unsafe_code, reason = "calls by number")]
fn errno_of(call: i64, first: u64, second: u64, third: u64) -> i32 {
    // SAFETY: each call made by the tests takes no pointer, or gets null ones, which the kernel rejects.
    match unsafe { syscall(call, first, second, third, 0, 0, 0) } {
        -1 => nix::errno::Errno::last_raw(),
        _ => 0,
    }
}

/// The error numbers of these calls, made under the filter. A filter applies to one thread, permanently.
fn under_the_filter<const N: usize>(calls: [(i64, u64, u64, u64); N]) -> [i32; N] {
    let thread = std::thread::spawn(move || {
        nix::sys::prctl::set_no_new_privs().unwrap();
        Filter::compile().apply().unwrap();
        calls.map(|(call, first, second, third)| errno_of(call, first, second, third))
    });
    thread.join().unwrap()
}

#[test]
fn the_kernel_takes_the_program_and_answers_by_it() {
    let user_namespace = CLONE_NEWUSER as u64;
    let network_namespace = u64::from((CLONE_NEWNET | SIGCHLD).cast_unsigned());
    let calls = [
        (SYS_mount, 0),
        (SYS_ptrace, 0),
        (SYS_clone, user_namespace),
        (SYS_clone, network_namespace),
        (SYS_clone, (CLONE_PARENT | SIGCHLD) as u64),
        (SYS_socket, AF_PACKET as u64),
        (SYS_socketpair, AF_TIPC as u64),
        (SYS_personality, 0x0040_0000),
        (SYS_clone3, 0),
        (SYS_io_uring_setup, 0),
        (SYS_pkey_alloc, 0),
        (463, 0),
        (962, 0),
        (0x4000_0000 | SYS_getpid, 0),
        (SYS_seccomp, 2),
        (SYS_getpid, 0),
        (SYS_personality, 0xffff_ffff),
        (SYS_close, u64::MAX),
    ];
    let mut wanted = [EPERM; 18];
    wanted[8..14].fill(ENOSYS);
    wanted[14..].copy_from_slice(&[EINVAL, 0, 0, EBADF]);
    assert_eq!(under_the_filter(calls.map(|(call, first)| (call, first, 0, 0))), wanted);
}

#[test]
fn multipath_sockets_are_refused_and_plain_ones_are_not() {
    let socket = |protocol: i32| (SYS_socket, AF_INET as u64, SOCK_STREAM as u64, protocol as u64);
    let answers = under_the_filter([IPPROTO_MPTCP, IPPROTO_TCP, 0].map(socket));
    assert_eq!(answers, [EPERM, 0, 0]);
}

#[test]
fn what_all_functions_of_a_host_share_is_taken_by_none() {
    // On a descriptor that is none, so that what is permitted gets that error.
    let option = |level: i32, name: i32| (SYS_setsockopt, u64::MAX, level as u64, name as u64);
    let answers = under_the_filter([
        option(SOL_SOCKET, SO_ATTACH_FILTER),
        option(SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF),
        option(SOL_SOCKET, SO_REUSEADDR),
        option(IPPROTO_TCP, SO_ATTACH_FILTER),
        (SYS_io_setup, 1, 0, 0),
    ]);
    assert_eq!(answers, [EPERM, EPERM, EBADF, EBADF, ENOSYS]);
}

#[test]
fn memory_is_not_freed_lazily() {
    // With a length of zero, so that nothing happens where it is permitted.
    let advice = [MADV_FREE, MADV_DONTNEED, MADV_NORMAL].map(|advice| (SYS_madvise, 0, 0, advice as u64));
    assert_eq!(under_the_filter(advice), [EINVAL, 0, 0]);
}
