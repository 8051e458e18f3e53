//! Names of UNIX sockets in the images of a checkpoint. CRIU looks for a socket only at the path that it was bound to.
//! One that was renamed it takes for one without a name, and what it then says of its mode is not true. So the kernel
//! is asked for the file of each socket, while the processes are stopped. The images are told the path where a restore
//! binds the socket, or that the socket has no name any more.
//!
//! A copy's `getsockname` tells that path. What no restore makes, such as a second name, is refused.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use rekindle_criu::images::{BoundSocket, ImageError, SocketFile, bound_sockets, place_unix_sockets};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::host::bound_file::{self, BoundFile, BoundName};
use crate::host::cgroup::Cgroup;
use crate::host::host_pids::processes_in;

/// Maximum length of a path that a socket is bound to, in bytes.
const PATH_MAX: usize = 107;

/// Why there can be no checkpoint.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnixNameError {
    /// The image of files cannot be read or written.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// The image of files is malformed.
    #[error("read the names of UNIX sockets")]
    Image(#[from] ImageError),
    /// The processes, or the root of their files, cannot be looked at.
    #[error("look for the function's UNIX sockets")]
    Processes(#[source] io::Error),
    /// The function has a socket that no restore makes as it is.
    #[error(
        "descriptor {fd} of process {pid} is a UNIX socket, bound to {path}, that {what}; or set snapshot = false in \
         fn.toml"
    )]
    Refused {
        /// The process's id in its pid namespace.
        pid: u32,
        fd: u32,
        /// The path that it was bound to, quoted.
        path: String,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// A socket whose name is lost is in no process.
    #[error(
        "a UNIX socket, bound to {0}, is not at that path any more, and is open in no process: receive it where it was \
         sent to, or set snapshot = false in fn.toml"
    )]
    Unseen(String),
}

impl UnixNameError {
    /// Returns whether it is of the function's making.
    pub(super) fn is_of_function(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Unseen(_))
    }
}

/// Where a process has a socket.
struct Holder {
    pid: u32,
    fd: u32,
    socket: OwnedFd,
}

/// Tells the images in `dir` which names the UNIX sockets of the stopped processes in `cgroup` have. `init` is that of
/// their sandbox, `owner` their user in it. Blocks for some microseconds a descriptor if a socket is bound to a file.
///
/// # Errors
/// Names the first socket that cannot be kept.
pub(super) fn settle(dir: &Path, cgroup: &Cgroup, init: Pid, owner: u32) -> Result<(), UnixNameError> {
    let path = dir.join("files.img");
    let image = fs::read(&path).map_err(|e| UnixNameError::File(path.clone(), e))?;
    let sockets = bound_sockets(&image)?;
    if sockets.is_empty() {
        return Ok(());
    }
    let root = bound_file::root_of(init.as_raw()).map_err(UnixNameError::Processes)?;
    let holders = holders(cgroup, &sockets).map_err(UnixNameError::Processes)?;
    let mut placed = HashMap::new();
    for socket in &sockets {
        let file = match holders.get(&socket.inode) {
            Some(holder) => placed_as(&root, socket, holder, owner)?,
            None if socket.is_lost => return Err(UnixNameError::Unseen(quoted(&socket.path))),
            None => None,
        };
        placed.extend(file.map(|file| (socket.id, file)));
    }
    if placed.is_empty() {
        return Ok(());
    }
    let image = place_unix_sockets(&image, &placed)?;
    fs::write(&path, image).map_err(|e| UnixNameError::File(path, e))
}

/// Returns what the images are to say of a socket. `None` if they are right.
fn placed_as(
    root: &OwnedFd,
    socket: &BoundSocket,
    holder: &Holder,
    owner: u32,
) -> Result<Option<SocketFile>, UnixNameError> {
    let refused = |what: String| UnixNameError::Refused {
        pid: holder.pid,
        fd: holder.fd,
        path: quoted(&socket.path),
        what,
    };
    let found = match bound_file::of(root, &holder.socket, &socket.path) {
        Ok(found) => found,
        // An old kernel, or a missing right. What CRIU has found at the path is right.
        Err(_) if !socket.is_lost => return Ok(None),
        Err(error) => {
            return Err(refused(format!(
                "is not there any more, and the kernel does not tell where it is ({error}): have it keep its name"
            )));
        }
    };
    let Some(BoundFile { name, mode }) = found else {
        return Ok(None);
    };
    let path = match name {
        BoundName::Kept => return Ok(None),
        BoundName::Removed => None,
        // A restore binds it there for a moment.
        BoundName::Stranded => return Err(refused("was removed with its directory: keep that".to_owned())),
        BoundName::Moved(path) if path.len() <= PATH_MAX => Some(path),
        BoundName::Moved(path) => {
            return Err(refused(format!(
                "was renamed to a path of {} bytes, where no socket can be bound: use one of at most {PATH_MAX}",
                path.len()
            )));
        }
        BoundName::Linked(links) => {
            return Err(refused(format!(
                "has {links} names (hard links), of which a copy would have one: remove the others"
            )));
        }
        BoundName::Unknown => {
            return Err(refused(
                "was given another name by a hard link and has lost its own: rename it instead".to_owned(),
            ));
        }
    };
    Ok(Some(SocketFile { path, mode, owner }))
}

fn quoted(path: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(path))
}

/// Finds a holder of each socket, by the sockets' inodes.
fn holders(cgroup: &Cgroup, sockets: &[BoundSocket]) -> io::Result<BTreeMap<u32, Holder>> {
    let mut found = BTreeMap::new();
    for (pid, host) in processes_in(cgroup).map_err(io::Error::other)? {
        let Some(process) = rustix::process::Pid::from_raw(host) else {
            continue;
        };
        let process = pidfd_open(process, PidfdFlags::empty())?;
        let descriptors = match fs::read_dir(format!("/proc/{host}/fd")) {
            // A zombie.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            descriptors => descriptors?,
        };
        for entry in descriptors {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            let (Some(fd), Some(inode)) = (number, inode_of(&entry.path())) else {
                continue;
            };
            if found.contains_key(&inode) || !sockets.iter().any(|socket| socket.inode == inode) {
                continue;
            }
            let socket = pidfd_getfd(&process, fd.cast_signed(), PidfdGetfdFlags::empty())?;
            found.insert(inode, Holder { pid, fd, socket });
        }
    }
    Ok(found)
}

/// Returns the inode number of the socket that a descriptor is.
fn inode_of(descriptor: &Path) -> Option<u32> {
    let target = fs::read_link(descriptor).ok()?;
    let number = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_placed_where_it_is_and_what_no_restore_makes_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let root = bound_file::root_of(std::process::id().cast_signed()).unwrap();
        let listening = OwnedFd::from(UnixListener::bind(at("a")).unwrap());
        let number = listening.as_raw_fd();
        let inode = inode_of(Path::new(&format!("/proc/self/fd/{number}"))).unwrap();
        let bytes = |name: &str| at(name).to_str().unwrap().as_bytes().to_vec();
        let told = BoundSocket {
            id: 7,
            inode,
            path: bytes("a"),
            is_lost: true,
        };
        let holder = Holder {
            pid: 501,
            fd: 3,
            socket: listening,
        };
        let placed = || placed_as(&root, &told, &holder, 1000);
        if matches!(placed(), Err(UnixNameError::Refused { what, .. }) if what.contains("does not tell")) {
            return crate::testing::skipped("the kernel does not tell the files of sockets");
        }
        assert_eq!(placed().unwrap(), None);
        fs::rename(at("a"), at("b")).unwrap();
        assert_eq!(placed().unwrap().unwrap().path, Some(bytes("b")));
        let refused = || placed().unwrap_err().to_string();
        let long = "x".repeat(PATH_MAX);
        fs::rename(at("b"), at(&long)).unwrap();
        assert!(refused().contains("use one of at most 107"), "{}", refused());
        fs::hard_link(at(&long), at("b")).unwrap();
        assert!(refused().contains("has 2 names (hard links)"), "{}", refused());
        fs::remove_file(at(&long)).unwrap();
        fs::rename(at("b"), at("c")).unwrap();
        assert!(refused().contains("descriptor 3 of process 501") && refused().contains("hard link"));
        fs::remove_file(at("c")).unwrap();
        let file = placed().unwrap().unwrap();
        assert_eq!((file.path, file.mode & libc::S_IFMT), (None, libc::S_IFSOCK));
    }
}
