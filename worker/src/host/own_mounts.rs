//! The file systems that each sandbox has of its own. Their device numbers are others in each sandbox.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use nix::unistd::Pid;
use rekindle_init::files::WRITTEN;
use serde::{Deserialize, Serialize};

/// A file system of a sandbox's own, with files of the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnMount {
    /// `/tmp`.
    Tmp,
    /// `/dev/shm`.
    Shm,
}

impl OwnMount {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Tmp, Self::Shm];

    /// Returns its device number, `st_dev` of its files, in the sandbox with this init.
    ///
    /// # Errors
    /// Returns an error when the sandbox is gone.
    pub(crate) fn device(self, init: Pid) -> io::Result<u64> {
        let path = match self {
            Self::Tmp => "tmp",
            Self::Shm => "dev/shm",
        };
        Ok(fs::symlink_metadata(format!("/proc/{init}/root/{path}"))?.dev())
    }
}

/// Returns the device number of a container image's root in the sandbox with this init, if it has one: that of all its
/// files.
///
/// # Errors
/// Returns an error when the sandbox is gone.
pub(crate) fn root_device(init: Pid) -> io::Result<Option<u64>> {
    let root = format!("/proc/{init}/root");
    match fs::symlink_metadata(format!("{root}/{WRITTEN}")) {
        Ok(_) => Ok(Some(fs::metadata(root)?.dev())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
