//! What an installer may do: it runs as `nobody`, sees the build's directory as its `/tmp`, cannot start another process and
//! cannot reach into one. So a build script, a git client or a lifecycle hook, which all need a process of their own, do not
//! run here even if the installer tries. It may turn itself into another program (execve), which is confined alike: the walls
//! are the user, the mounts and the filter, not the program.
#![expect(unsafe_code, reason = "what a child does between fork and exec has no safe wrapper")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{set_no_new_privs, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, chdir, setgroups, setresgid, setresuid, write};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// The user and group that installers run as: `nobody`.
pub(super) const INSTALLER_UID: u32 = 65_534;
/// Where the build's directory is seen.
pub(super) const SEEN_AT: &str = "/tmp";

/// Everything made ready before the fork: between fork and exec nothing may allocate.
struct Confinement {
    cgroup_procs: Vec<CString>,
    room: CString,
    cwd: CString,
    file_bytes: u64,
    no_clone3: BpfProgram,
    no_processes: BpfProgram,
}

/// Confines the process that `command` will start. `cwd` is as the installer sees it; `file_bytes` bounds one file.
pub(super) fn confine(
    command: &mut Command,
    room: &Path,
    cwd: &str,
    file_bytes: u64,
    cgroup_procs: &[PathBuf],
) -> io::Result<()> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
    let (no_clone3, no_processes) = filters().map_err(io::Error::other)?;
    let confinement = Confinement {
        cgroup_procs: cgroup_procs
            .iter()
            .map(|p| c_string(p.as_os_str().as_bytes()))
            .collect::<Result<_, _>>()?,
        room: c_string(room.as_os_str().as_bytes())?,
        cwd: c_string(cwd.as_bytes())?,
        file_bytes,
        no_clone3,
        no_processes,
    };
    command.process_group(0);
    // SAFETY: the closure only makes system calls on values made before the fork; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(move || confinement.enter()) };
    Ok(())
}

impl Confinement {
    fn enter(&self) -> io::Result<()> {
        for procs in &self.cgroup_procs {
            let file = open(procs.as_c_str(), OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
            write(&file, b"0")?;
        }
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&std::ffi::CStr>;
        mount(none, c"/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let seen_at = c"/tmp";
        mount(Some(self.room.as_c_str()), seen_at, none, MsFlags::MS_BIND, none)?;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(none, seen_at, none, flags, none)?;
        chdir(self.cwd.as_c_str())?;
        umask(Mode::from_bits_truncate(0o022));
        setrlimit(Resource::RLIMIT_FSIZE, self.file_bytes, self.file_bytes)?;
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        setgroups(&[])?;
        let (uid, gid) = (Uid::from_raw(INSTALLER_UID), Gid::from_raw(INSTALLER_UID));
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
        // After the change of user, which clears it. The thread that forks waits for the installer, so this means the
        // death of the worker.
        set_pdeathsig(Signal::SIGKILL)?;
        set_no_new_privs()?;
        apply_filter(&self.no_clone3).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        apply_filter(&self.no_processes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    }
}

/// Threads may be made, processes not. `clone3` hides its flags behind a pointer, so it is said not to exist: the C
/// library then uses `clone`.
fn filters() -> Result<(BpfProgram, BpfProgram), seccompiler::BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let thread = libc::CLONE_THREAD as u64;
    let no_thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), 0)?;
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_mut, reason = "other architectures have clone only")
    )]
    let mut forbidden = vec![(libc::SYS_clone, vec![SeccompRule::new(vec![no_thread])?])];
    #[cfg(target_arch = "x86_64")]
    forbidden.extend([(libc::SYS_fork, Vec::new()), (libc::SYS_vfork, Vec::new())]);
    // Other builds run as the same user.
    forbidden.extend(
        [
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
        ]
        .map(|call| (call, Vec::new())),
    );
    let filter = |calls: Vec<(i64, Vec<SeccompRule>)>, errno: i32| -> Result<BpfProgram, seccompiler::BackendError> {
        let action = SeccompAction::Errno(errno.unsigned_abs());
        SeccompFilter::new(calls.into_iter().collect(), SeccompAction::Allow, action, arch)?.try_into()
    };
    Ok((
        filter(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)?,
        filter(forbidden, libc::EPERM)?,
    ))
}
