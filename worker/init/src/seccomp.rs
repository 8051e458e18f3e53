//! The system call filter of a function: what is not needed is refused, what is not known does not exist. It follows the
//! default profile of the common container engines, and is stricter where a snapshot could not be taken of what a call makes.
//!
//! Two filters, since one can answer with one errno only: the first refuses with `EPERM`; the second says `ENOSYS` to calls
//! that are newer than this list, as an older kernel would, and to what programs know how to do without: C libraries try a
//! new call and fall back to an old one on that answer alone.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Calls above this number are newer than this filter (or of another ABI) and do not exist for a function. 462 is `mseal`.
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

const NEW_NAMESPACES: [libc::c_int; 7] = [
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
/// The usual Linux persona, and the question which one it is.
const PERSONAS: [u64; 2] = [0, 0xffff_ffff];

/// The compiled filters.
pub struct Filters(Vec<BpfProgram>);

impl Filters {
    /// Compiles both filters. Done before the fork, so that a mistake here is an answer and not a dead child.
    ///
    /// # Errors
    /// When a rule is malformed.
    pub fn compile() -> Result<Self, BackendError> {
        let argument = |op, value| SeccompCondition::new(0, SeccompCmpArgLen::Dword, op, value);
        let mut refusals: BTreeMap<i64, Vec<SeccompRule>> = FORBIDDEN.iter().map(|call| (*call, vec![])).collect();
        // Rules of a call are alternatives; the conditions of a rule must all hold.
        let namespaces = NEW_NAMESPACES
            .iter()
            .map(|flag| *flag as u32 as u64)
            .map(|flag| SeccompRule::new(vec![argument(SeccompCmpOp::MaskedEq(flag), flag)?]))
            .collect::<Result<_, _>>()?;
        refusals.insert(libc::SYS_clone, namespaces);
        let none_of = |values: &[u64]| {
            let conditions = values.iter().map(|value| argument(SeccompCmpOp::Ne, *value));
            Ok::<_, BackendError>(vec![SeccompRule::new(conditions.collect::<Result<_, _>>()?)?])
        };
        refusals.insert(libc::SYS_socket, none_of(&SOCKET_FAMILIES)?);
        refusals.insert(libc::SYS_personality, none_of(&PERSONAS)?);
        let refused = SeccompFilter::new(
            refusals,
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EPERM as u32),
            TargetArch::x86_64,
        )?;
        let absent = SeccompFilter::new(
            (0..=NEWEST_KNOWN)
                .filter(|call| !ABSENT.contains(call))
                .map(|call| (call, vec![]))
                .collect(),
            SeccompAction::Errno(libc::ENOSYS as u32),
            SeccompAction::Allow,
            TargetArch::x86_64,
        )?;
        Ok(Self(vec![refused.try_into()?, absent.try_into()?]))
    }

    /// Puts this thread under the filters, for good. `no_new_privs` must be set.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn apply(&self) -> Result<(), seccompiler::Error> {
        self.0.iter().try_for_each(|program| apply_filter(program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_filters_compile_within_the_kernels_limit() {
        let filters = Filters::compile().unwrap();
        assert_eq!(filters.0.len(), 2);
        assert!(filters.0.iter().all(|p| p.len() < 4096));
    }

    /// Makes a call whose arguments do nothing even where it is allowed; the error number, 0 for none.
    #[expect(unsafe_code, reason = "calls by number")]
    fn errno_of(call: i64, first: u64) -> i32 {
        // SAFETY: each call that the test makes takes no pointer, or is given null ones, which the kernel refuses.
        match unsafe { libc::syscall(call, first, 0, 0, 0, 0, 0) } {
            -1 => nix::errno::Errno::last_raw(),
            _ => 0,
        }
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
            calls.map(|(call, first)| errno_of(call, first))
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
