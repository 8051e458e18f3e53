//! The file systems that each sandbox has of its own. Their device numbers are others in each sandbox.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use nix::unistd::Pid;
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
