//! The system call filter of a function: what is not needed is refused, what is not known does not exist. It follows the
//! default profile of the common container engines, and is stricter where a snapshot could not be taken of what a call makes.
//!
//! One program: it answers `ENOSYS` to what programs know how to do without and to calls newer than it, `EINVAL` to
//! `MADV_FREE`, `EPERM` to what is forbidden. It is short on purpose. At each restore the kernel runs it once for every call there is, to learn what it
//! always allows; a list of all that is allowed took 0.8 ms there.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

/// Calls above this number are newer than this filter (or of the x32 ABI) and are as if absent. 462 is `mseal`.
const NEWEST_KNOWN: i64 = 462;

/// Calls that no function needs and that reach the host, other processes or the kernel's less trodden parts.
const FORBIDDEN: &[i64] = &[
    // mounts and namespaces
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    457, // statmount
    458, // listmount
    // other processes
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // the kernel itself
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    174, // create_module
    177, // get_kernel_syms
    178, // query_module
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS__sysctl,
    libc::SYS_sysfs,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_landlock_create_ruleset,
    // keys outlive the sandbox
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // the pager's own means
    libc::SYS_userfaultfd,
    // memory that a snapshot cannot hold
    libc::SYS_memfd_secret,
];

/// Calls that programs try and do without when the kernel lacks them.
const ABSENT: &[i64] = &[
    // Its flags lie in memory, where a filter cannot look; C libraries then use clone.
    libc::SYS_clone3,
    // No snapshot can be taken of a ring.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

const NEW_NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

const SOCKET_FAMILIES: [u64; 4] = [
    libc::AF_UNIX as u64,
    libc::AF_INET as u64,
    libc::AF_INET6 as u64,
    libc::AF_NETLINK as u64,
];
/// CRIU cannot checkpoint such a socket. Go's servers ask for one first, and take plain TCP where there is none.
const MULTIPATH_TCP: u64 = libc::IPPROTO_MPTCP as u64;
/// The kernel tells the pager that memory is freed before it finds that it cannot free a mapping of a file lazily, and what
/// restored memory is mapped from is a file: the pager would take for freed what the program keeps. Allocators free at once instead.
const LAZY_FREE: u32 = libc::MADV_FREE as u32;
/// The usual Linux persona, and the question which one it is.
const PERSONAS: [u64; 2] = [0, 0xffff_ffff];

/// The compiled filter.
pub struct Filters(BpfProgram);

impl Filters {
    /// Compiles the filter. Done before the fork, so that a mistake here is an answer and not a dead child.
    ///
    /// # Errors
    /// When a rule is malformed.
    pub fn compile() -> Result<Self, BackendError> {
        let argument = |op, value| SeccompCondition::new(0, SeccompCmpArgLen::Dword, op, value);
        let none_of = |values: &[u64]| {
            let conditions = values.iter().map(|value| argument(SeccompCmpOp::Ne, *value));
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        };
        let namespaces = NEW_NAMESPACES.iter().map(|flag| {
            let flag = u64::from(flag.cast_unsigned());
            SeccompRule::new(vec![argument(SeccompCmpOp::MaskedEq(flag), flag)?])
        });
        let mut forbidden: BTreeMap<i64, Vec<SeccompRule>> = FORBIDDEN.iter().map(|call| (*call, vec![])).collect();
        forbidden.insert(libc::SYS_clone, namespaces.collect::<Result<_, _>>()?);
        let multipath = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, MULTIPATH_TCP)?;
        forbidden.insert(
            libc::SYS_socket,
            vec![none_of(&SOCKET_FAMILIES)?, SeccompRule::new(vec![multipath])?],
        );
        forbidden.insert(libc::SYS_personality, vec![none_of(&PERSONAS)?]);
        let refused: BpfProgram = SeccompFilter::new(
            forbidden,
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EPERM as u32),
            TargetArch::x86_64,
        )?
        .try_into()?;
        let mut program = before();
        program.extend(refused);
        Ok(Self(program))
    }

    /// Puts this thread under the filter, for good. `no_new_privs` must be set.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn apply(&self) -> Result<(), seccompiler::Error> {
        apply_filter(&self.0)
    }
}

/// The beginning of the program: what is answered with another error than `EPERM`. Calls of another architecture that are not
/// among these numbers go on to the rest, which ends the process.
fn before() -> BpfProgram {
    // Words of the classic BPF machine, and where `seccomp_data` has the number.
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const IF_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const NUMBER_AT: u32 = 0;
    /// The lower half of the third argument.
    const ADVICE_AT: u32 = 32;
    let word = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    let answer = |errno: i32| word(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32, 0);
    let enosys = answer(libc::ENOSYS);
    let mut program = vec![word(LOAD, NUMBER_AT, 0)];
    for call in ABSENT {
        program.extend([word(IF_EQUAL, *call as u32, 1), enosys.clone()]);
    }
    program.extend([word(IF_GREATER, NEWEST_KNOWN as u32, 1), enosys]);
    program.extend([
        word(IF_EQUAL, libc::SYS_madvise as u32, 3),
        word(LOAD, ADVICE_AT, 0),
        word(IF_EQUAL, LAZY_FREE, 1),
        answer(libc::EINVAL),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_is_short() {
        let filters = Filters::compile().unwrap();
        assert!(filters.0.len() < 512, "{} instructions", filters.0.len());
    }

    /// Makes a call whose arguments do nothing even where it is allowed; the error number, 0 for none.
    #[expect(unsafe_code, reason = "calls by number")]
    fn errno_of(call: i64, first: u64, second: u64, third: u64) -> i32 {
        // SAFETY: each call that the test makes takes no pointer, or is given null ones, which the kernel refuses.
        match unsafe { libc::syscall(call, first, second, third, 0, 0, 0) } {
            -1 => nix::errno::Errno::last_raw(),
            _ => 0,
        }
    }

    #[test]
    fn multipath_sockets_are_refused_and_plain_ones_are_not() {
        let answers = std::thread::spawn(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            Filters::compile().unwrap().apply().unwrap();
            let protocols = [libc::IPPROTO_MPTCP, libc::IPPROTO_TCP, 0];
            let stream = libc::SOCK_STREAM as u64;
            protocols.map(|p| errno_of(libc::SYS_socket, libc::AF_INET as u64, stream, p as u64))
        });
        assert_eq!(answers.join().unwrap(), [libc::EPERM, 0, 0]);
    }

    #[test]
    fn memory_is_not_freed_lazily() {
        let answers = std::thread::spawn(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            Filters::compile().unwrap().apply().unwrap();
            // Of no bytes: nothing happens where it is allowed.
            let advice = [libc::MADV_FREE, libc::MADV_DONTNEED, libc::MADV_NORMAL];
            advice.map(|a| errno_of(libc::SYS_madvise, 0, 0, a as u64))
        });
        assert_eq!(answers.join().unwrap(), [libc::EINVAL, 0, 0]);
    }

    #[test]
    fn forbidden_calls_are_refused_unknown_ones_do_not_exist_and_the_rest_works() {
        // A filter is of one thread, for good.
        let answers = std::thread::spawn(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            Filters::compile().unwrap().apply().unwrap();
            let calls = [
                (libc::SYS_mount, 0),
                (libc::SYS_ptrace, 0),
                (libc::SYS_clone, libc::CLONE_NEWUSER as u64),
                (libc::SYS_clone, libc::CLONE_NEWNET as u32 as u64 | libc::SIGCHLD as u64),
                (libc::SYS_socket, libc::AF_PACKET as u64),
                (libc::SYS_personality, 0x0040_0000),
                (libc::SYS_clone3, 0),
                (libc::SYS_io_uring_setup, 0),
                (NEWEST_KNOWN + 1, 0),
                (NEWEST_KNOWN + 500, 0),
                (0x4000_0000 | libc::SYS_getpid, 0),
                (libc::SYS_getpid, 0),
                (libc::SYS_personality, 0xffff_ffff),
                (libc::SYS_close, u64::MAX),
            ];
            calls.map(|(call, first)| errno_of(call, first, 0, 0))
        });
        use libc::{EBADF, ENOSYS, EPERM};
        assert_eq!(
            answers.join().unwrap(),
            [
                EPERM, EPERM, EPERM, EPERM, EPERM, EPERM, ENOSYS, ENOSYS, ENOSYS, ENOSYS, ENOSYS, 0, 0, EBADF
            ]
        );
    }
}
