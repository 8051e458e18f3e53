//! The system call filter of a function: what is neither known nor needed is refused. It follows the default profile of the
//! common container engines, and is stricter where a snapshot could not be taken of what a call makes.
//!
//! Two filters, since one can answer with one errno only: the first refuses with `EPERM`, the second with `ENOSYS` what
//! programs know how to do without.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Calls above this number are newer than this filter (or of another ABI) and are refused. 462 is `mseal`.
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

const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32 as u64;

const SOCKET_FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
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
        let allow = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
        let argument = |index, op, value| SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value);
        let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = (0..=NEWEST_KNOWN)
            .filter(|call| !FORBIDDEN.contains(call))
            .map(|call| (call, vec![]))
            .collect();
        let no_namespace = SeccompCmpOp::MaskedEq(NEW_NAMESPACES);
        allowed.insert(libc::SYS_clone, vec![allow(vec![argument(0, no_namespace, 0)?])?]);
        let families = SOCKET_FAMILIES
            .iter()
            .map(|family| allow(vec![argument(0, SeccompCmpOp::Eq, *family as u64)?]))
            .collect::<Result<_, _>>()?;
        allowed.insert(libc::SYS_socket, families);
        let personas = PERSONAS
            .iter()
            .map(|persona| allow(vec![argument(0, SeccompCmpOp::Eq, *persona)?]))
            .collect::<Result<_, _>>()?;
        allowed.insert(libc::SYS_personality, personas);
        let refused = SeccompFilter::new(
            allowed,
            SeccompAction::Errno(libc::EPERM as u32),
            SeccompAction::Allow,
            TargetArch::x86_64,
        )?;
        let absent = SeccompFilter::new(
            ABSENT.iter().map(|call| (*call, vec![])).collect(),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::ENOSYS as u32),
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
}
