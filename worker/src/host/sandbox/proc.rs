//! The `/proc` of a sandbox's processes, by their ids inside. The root of a sandbox may have mounted anything over it:
//! a file opened here is the kernel's, or the call fails.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::unistd::Pid;
use rustix::fs::{CWD, Dir, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, openat, openat2};

/// A sandbox's `/proc`.
#[derive(Debug)]
pub struct InnerProc(OwnedFd);

impl InnerProc {
    /// Opens the `/proc` of the sandbox with this init.
    ///
    /// # Errors
    /// Returns an error when the sandbox is gone, or something else lies there.
    pub fn of(init: Pid) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(CWD, format!("/proc/{init}/root/proc"), flags, Mode::empty())?;
        match fstatfs(&found)?.f_type == PROC_SUPER_MAGIC {
            true => Ok(Self(found)),
            false => Err(io::Error::other(
                "the sandbox has something else than processes at /proc",
            )),
        }
    }

    /// Opens a file of it. The file must not be a link, and nothing may be mounted over it or on the way to it.
    ///
    /// # Errors
    /// Returns an error when the process is gone, or the file is another.
    pub fn open(&self, path: &str, flags: OFlags) -> io::Result<File> {
        let only = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(openat2(&self.0, path, flags, Mode::empty(), only)?.into())
    }

    /// Returns the ids of all processes.
    ///
    /// # Errors
    /// Returns an error when they cannot be listed.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        let listed = self.open(".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut pids = Vec::new();
        for entry in Dir::read_from(&listed)? {
            pids.extend(
                entry?
                    .file_name()
                    .to_str()
                    .ok()
                    .and_then(|name| name.parse::<i32>().ok()),
            );
        }
        Ok(pids)
    }

    /// Names a process by its id and its name, if it can be read.
    pub(crate) fn named(&self, pid: u32) -> String {
        /// Longer than any name.
        const NAME_MAX: u64 = 64;
        let mut name = String::new();
        let file = self.open(&format!("{pid}/comm"), OFlags::RDONLY);
        match file.and_then(|file| file.take(NAME_MAX).read_to_string(&mut name)) {
            Ok(_) => format!("process {pid} ({:?})", name.trim_end()),
            Err(_) => format!("process {pid}"),
        }
    }

    /// Returns its path as this process sees it, for calls that take a path.
    pub fn path(&self) -> PathBuf {
        use std::os::fd::AsRawFd as _;
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}
