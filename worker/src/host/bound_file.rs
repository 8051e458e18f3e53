//! The files that UNIX sockets are bound to. Their programs rename, link and remove them like others, and the kernel
//! still tells which file it is.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, open, openat2, readlinkat};

/// Inspects a file without reading it, and a link itself rather than its target.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Resolves from the sandbox's root, as the process did that bound the socket: directories may be links.
const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// What has become of the name that a socket was bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BoundName {
    /// It leads to the socket.
    Kept,
    /// The socket is at this path, from the sandbox's root on.
    Moved(Vec<u8>),
    /// The socket has no name any more.
    Removed,
    /// Nor is the directory there that it had one in.
    Stranded,
    /// The socket has as many names.
    Linked(u64),
    /// The socket has one name, which was made by a link. The kernel does not tell it.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundFile {
    pub(crate) name: BoundName,
    pub(crate) mode: u32,
}

/// Opens the root of a process's files, to look below it.
///
/// # Errors
/// Returns an error when the process is gone.
pub(crate) fn root_of(pid: i32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(format!("/proc/{pid}/root"), flags, Mode::empty())?)
}

/// Returns the file that a UNIX socket was bound to at `path`. `None` if it was bound to none.
///
/// # Errors
/// Returns an error when the kernel does not tell, as before Linux 4.14.
pub(crate) fn of(root: &OwnedFd, socket: &OwnedFd, path: &[u8]) -> io::Result<Option<BoundFile>> {
    let Some(file) = file_of(socket)? else {
        return Ok(None);
    };
    let stat = fstat(&file)?;
    let is_at = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path));
        let found = openat2(root, path, LOOK, Mode::empty(), INSIDE).and_then(fstat);
        found.is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
    };
    let name = match stat.st_nlink {
        0 if has_directory(root, path) => BoundName::Removed,
        0 => BoundName::Stranded,
        1 if is_at(path) => BoundName::Kept,
        1 => {
            // As the processes have it, wherever their root is here.
            let now = readlinkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new())?;
            let now = now.into_bytes();
            match is_at(&now) {
                true => BoundName::Moved(now),
                false => BoundName::Unknown,
            }
        }
        links => BoundName::Linked(links),
    };
    Ok(Some(BoundFile {
        name,
        mode: stat.st_mode,
    }))
}

/// Returns whether the directory that a path leads to a file in is there.
fn has_directory(root: &OwnedFd, path: &[u8]) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    let above = path.parent().unwrap_or(Path::new("/"));
    // A relative name led from where the process was then.
    path.is_relative() || openat2(root, above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), INSIDE).is_ok()
}

/// Opens the file that a socket is bound to. Needs the right to configure the socket's network.
fn file_of(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    /// `SIOCUNIXFILE`.
    const FILE: libc::Ioctl = 0x89e0;
    // SAFETY: it has no argument, and touches no memory.
    #[expect(unsafe_code, reason = "this ioctl has no safe wrapper")]
    let made = unsafe { libc::ioctl(socket.as_raw_fd(), FILE) };
    match Errno::result(made) {
        // SAFETY: the kernel has just made it, for nobody else.
        #[expect(unsafe_code, reason = "takes ownership of what the kernel made")]
        Ok(made) => Ok(Some(unsafe { OwnedFd::from_raw_fd(made) })),
        // Bound to none.
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_kernel_tells_what_has_become_of_a_socket_s_name() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| directory.path().join(name));
        let root = root_of(std::process::id().cast_signed()).unwrap();
        let listening = UnixListener::bind(&first).unwrap();
        let client = UnixStream::connect(&first).unwrap();
        let accepted = OwnedFd::from(listening.accept().unwrap().0);
        let listening = OwnedFd::from(listening);
        if let Err(error) = of(&root, &listening, b"") {
            return crate::testing::skipped(&error.to_string());
        }
        let path = first.as_os_str().as_bytes();
        let name = |socket: &OwnedFd| of(&root, socket, path).unwrap().unwrap().name;
        assert_eq!(name(&listening), BoundName::Kept);
        fs::rename(&first, &second).unwrap();
        // Another file at the name that it had.
        fs::write(&first, "").unwrap();
        let moved = BoundName::Moved(second.as_os_str().as_bytes().to_vec());
        assert_eq!((name(&listening), name(&accepted)), (moved.clone(), moved));
        let found = of(&root, &listening, path).unwrap().unwrap();
        assert_eq!(found.mode & libc::S_IFMT, libc::S_IFSOCK);

        fs::remove_file(&first).unwrap();
        fs::hard_link(&second, &first).unwrap();
        assert_eq!(name(&listening), BoundName::Linked(2));
        fs::remove_file(&second).unwrap();
        assert_eq!(
            of(&root, &listening, b"/none").unwrap().unwrap().name,
            BoundName::Unknown
        );
        fs::remove_file(&first).unwrap();
        assert_eq!(name(&listening), BoundName::Removed);
        assert_eq!(of(&root, &listening, b"a").unwrap().unwrap().name, BoundName::Removed);
        assert_eq!(
            of(&root, &listening, b"/none/a").unwrap().unwrap().name,
            BoundName::Stranded
        );
        assert_eq!(of(&root, &client.into(), path).unwrap(), None);

        // Below a directory that is a link, as /var/run often is.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        let path = link.join("c");
        let listening = OwnedFd::from(UnixListener::bind(&path).unwrap());
        let name = || {
            let found = of(&root, &listening, path.as_os_str().as_bytes());
            found.unwrap().unwrap().name
        };
        assert_eq!(name(), BoundName::Kept);
        fs::remove_file(&path).unwrap();
        assert_eq!(name(), BoundName::Removed);
    }
}
