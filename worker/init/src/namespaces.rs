//! Namespaces of a sandbox: a single `clone` creates all of them, owned by a user namespace in which the sandbox's root
//! is nobody on the host.

use std::ffi::c_int;
use std::fs;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::unistd::{Gid, Pid, Uid, seteuid, setgroups, sethostname, setresgid, setresuid};

use crate::protocol::IDS;

/// Why a sandbox could not be created.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// A cgroup could not be joined.
    #[error("join {}", .0.display())]
    Cgroup(PathBuf, #[source] std::io::Error),
    /// A system call failed.
    #[error("{0}")]
    Call(&'static str, #[source] nix::Error),
    /// The ids of its user namespace could not be set.
    #[error("write {}", .0.display())]
    Ids(PathBuf, #[source] std::io::Error),
    /// The loopback interface could not be brought up.
    #[error("bring up the loopback interface")]
    Loopback(#[source] std::io::Error),
    /// There are too many user namespaces, or none are permitted.
    #[error("make a user namespace: the host allows no more (sysctl user.max_user_namespaces)")]
    TooMany(#[source] nix::Error),
}

/// Joins the cgroups with these `cgroup.procs` files.
///
/// # Errors
/// If one cannot be written.
pub fn join_cgroups(procs: &[PathBuf]) -> Result<(), NamespaceError> {
    procs
        .iter()
        .try_for_each(|file| fs::write(file, "0").map_err(|e| NamespaceError::Cgroup(file.clone(), e)))
}

/// All namespaces of a sandbox. The user namespace owns the others.
const SANDBOX: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWCGROUP;

/// Forks into new namespaces. Returns twice: `Some(pid)` with the child's host pid in the caller, and `None` in the
/// child. The child is pid 1 of the new pid namespace. Like the caller, it is a child of the worker, so the caller may
/// exit.
///
/// The user namespace belongs to the host's user `owner`, to whom the kernel charges what the sandbox has of inotify
/// instances, queued signals, message queues and locked memory. Root would pay for all sandboxes together.
///
/// # Errors
/// If the kernel refuses. Nothing is left behind then.
pub fn fork_into_sandbox(owner: Uid) -> Result<Option<Pid>, NamespaceError> {
    let root = Uid::from_raw(0);
    seteuid(owner).map_err(|e| NamespaceError::Call("become a sandbox's owner", e))?;
    let forked = clone_beside(SANDBOX);
    if !matches!(forked, Ok(None)) {
        seteuid(root).map_err(|e| NamespaceError::Call("become root again", e))?;
    }
    forked.map_err(|e| match e {
        Errno::ENOSPC | Errno::EUSERS => NamespaceError::TooMany(e),
        e => NamespaceError::Call("fork pid 1 of a sandbox", e),
    })
}

/// Forks a child whose parent is the caller's parent, which must reap it. Returns twice, like [`fork_into_sandbox`].
///
/// # Errors
/// If the kernel refuses.
pub fn fork_beside() -> nix::Result<Option<Pid>> {
    clone_beside(0)
}

#[expect(unsafe_code, reason = "clone has no safe wrapper that shares the parent")]
fn clone_beside(namespaces: c_int) -> nix::Result<Option<Pid>> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD | namespaces);
    // SAFETY: without CLONE_VM this is a fork. The process is single-threaded, so the child may keep using everything.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    Ok(match Errno::result(child)? {
        0 => None,
        pid => Some(Pid::from_raw(pid as i32)),
    })
}

/// Maps the host's ids from `first` on into a process made by [`fork_into_sandbox`].
///
/// # Errors
/// If the kernel refuses.
pub fn map_ids(pid: Pid, first: u32) -> Result<(), NamespaceError> {
    ["uid_map", "gid_map"].into_iter().try_for_each(|name| {
        let path = PathBuf::from(format!("/proc/{pid}/{name}"));
        fs::write(&path, format!("0 {first} {IDS}\n")).map_err(|e| NamespaceError::Ids(path, e))
    })
}

/// Called in that process once its ids are mapped: becomes the sandbox's root.
///
/// # Errors
/// If the kernel refuses.
pub fn become_root() -> Result<(), NamespaceError> {
    let call = |what| move |e| NamespaceError::Call(what, e);
    let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
    setgroups(&[]).map_err(call("leave the host's groups"))?;
    setresgid(gid, gid, gid).map_err(call("become the sandbox's root group"))?;
    setresuid(uid, uid, uid).map_err(call("become the sandbox's root"))?;
    // CRIU opens descriptors held by init by number, below /proc/1.
    nix::sys::prctl::set_dumpable(true).map_err(call("let criu see what init holds"))
}

/// Sets the host name.
///
/// # Errors
/// If the kernel refuses.
pub fn name_host(hostname: &str) -> Result<(), NamespaceError> {
    sethostname(hostname).map_err(|e| NamespaceError::Call("sethostname", e))
}

/// Brings the only network interface up.
///
/// # Errors
/// If the kernel refuses.
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
