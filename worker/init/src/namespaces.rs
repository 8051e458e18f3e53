//! New namespaces, entered in the order the kernel wants: cgroup membership first (so that everything made afterwards is
//! counted), then one `unshare`, then a fork whose child is pid 1.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, sethostname};

/// Why a sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// A cgroup could not be joined.
    #[error("join {}", .0.display())]
    Cgroup(PathBuf, #[source] std::io::Error),
    /// A system call failed.
    #[error("{0}")]
    Call(&'static str, #[source] nix::Error),
    /// The loopback interface could not be brought up.
    #[error("bring up the loopback interface")]
    Loopback(#[source] std::io::Error),
}

/// Joins the cgroups whose `cgroup.procs` files are given.
///
/// # Errors
/// When one cannot be written.
pub fn join_cgroups(procs: &[PathBuf]) -> Result<(), NamespaceError> {
    procs
        .iter()
        .try_for_each(|file| fs::write(file, "0").map_err(|e| NamespaceError::Cgroup(file.clone(), e)))
}

/// Leaves the host's namespaces and forks. Returns twice: `Some(pid)` with the child's host pid in the caller, `None` in the
/// child, which is pid 1 of the new pid namespace and, like the caller, a child of the worker: so the caller can go.
///
/// # Errors
/// When the kernel refuses; nothing is left behind then.
pub fn enter() -> Result<Option<Pid>, NamespaceError> {
    let flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(flags).map_err(|e| NamespaceError::Call("unshare namespaces", e))?;
    fork_beside().map_err(|e| NamespaceError::Call("fork pid 1", e))
}

/// Forks; the child's parent is the caller's, which is to reap it. Returns twice, as [`enter`].
///
/// # Errors
/// When the kernel refuses.
#[expect(unsafe_code, reason = "clone has no safe wrapper that shares the parent")]
pub fn fork_beside() -> nix::Result<Option<Pid>> {
    // SAFETY: without CLONE_VM this is a fork; the process has a single thread, so the child may go on using everything.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_PARENT | libc::SIGCHLD, 0, 0, 0, 0) };
    Ok(match nix::errno::Errno::result(child)? {
        0 => None,
        pid => Some(Pid::from_raw(pid as i32)),
    })
}

/// Names the host.
///
/// # Errors
/// When the kernel refuses.
pub fn name_host(hostname: &str) -> Result<(), NamespaceError> {
    sethostname(hostname).map_err(|e| NamespaceError::Call("sethostname", e))
}

/// Brings the only network interface up.
///
/// # Errors
/// When the kernel refuses.
pub fn prepare_network() -> Result<(), NamespaceError> {
    loopback_up().map_err(NamespaceError::Loopback)
}

#[expect(unsafe_code, reason = "the interface ioctls have no safe wrapper in nix")]
fn loopback_up() -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which lives until the call returns.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) };
    if rc == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Sends init's host pid to the worker.
///
/// # Errors
/// When the worker is gone.
pub fn report_pid(control: BorrowedFd<'_>, pid: Pid) -> std::io::Result<()> {
    crate::protocol::send(control, &crate::protocol::Message::Forked(pid.as_raw()), &[])
}
