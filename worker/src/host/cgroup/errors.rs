//! Errors of operations on control groups: one enum for each operation.

use std::path::PathBuf;
use std::time::Duration;

use super::files::FileError;

/// Why control groups cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// A controller is missing.
    #[error(
        "cgroup controllers {missing} are not available at {}: mount cgroup2 there, or the v1 hierarchies, and see \
         `fn doctor`",
        .root.display()
    )]
    Missing {
        /// The root of the hierarchy.
        root: PathBuf,
        /// The missing controllers.
        missing: String,
    },
    /// Processes are in the way.
    #[error(
        "{} cannot hand controllers down while it has processes: start the worker in a cgroup of its own (systemd: \
         Delegate=yes)",
        .path.display()
    )]
    Occupied {
        /// The control file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: FileError,
    },
    /// The name is invalid.
    #[error("\"{0}\" cannot name a cgroup: use letters, digits, '-', '_' and '.', not starting with '.'")]
    Name(String),
    /// A file failed.
    #[error("set up cgroups")]
    File(#[source] FileError),
}

/// Why a group could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The name is invalid.
    #[error("\"{0}\" cannot name a cgroup: use letters, digits, '-', '_' and '.', not starting with '.'")]
    Name(String),
    /// A file failed. What had been created was removed again.
    #[error("create cgroup {name}")]
    File {
        /// The group.
        name: String,
        /// The file's error.
        #[source]
        source: FileError,
    },
}

/// Why reads from a disk cannot be limited.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The controller is missing.
    #[error("there is no cgroup controller for disks at {0}: mount blkio (v1), or delegate io (v2)")]
    NoController(String),
    /// The filesystem is on no disk.
    #[error("{} lies on no disk that cgroups know (a tmpfs, an overlay, btrfs or the network)", .0.display())]
    NoDisk(PathBuf),
    /// The kernel refuses.
    #[error("bound reads from the disk")]
    Refused(#[source] FileError),
}

/// Why devices cannot be filtered.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The controller is missing.
    #[error("there is no cgroup controller for devices at {0}: mount devices (v1)")]
    NoController(String),
    /// The kernel accepts no filter.
    #[error(
        "load a filter of devices: the kernel needs CONFIG_CGROUP_BPF, the worker CAP_SYS_ADMIN or CAP_BPF \
         with CAP_NET_ADMIN"
    )]
    Program(#[source] std::io::Error),
    /// The kernel refuses.
    #[error("filter devices")]
    Refused(#[source] FileError),
}

/// Why processes could not be frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// They did not stop in time, and keep running.
    #[error("processes still run after {limit:?}, says {}: {threads}", .path.display())]
    StillRunning {
        /// The control file.
        path: PathBuf,
        /// How long the call waited.
        limit: Duration,
        /// What their threads did then.
        threads: String,
    },
    /// A file failed.
    #[error("freeze")]
    File(#[from] FileError),
}

/// Why processes could not be killed.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// Some are left.
    #[error("{left} processes of cgroup {name} did not die within {limit:?} of SIGKILL")]
    Left {
        /// The group.
        name: String,
        /// The number of processes left.
        left: usize,
        /// How long the call waited.
        limit: Duration,
    },
    /// A file failed.
    #[error("kill")]
    File(#[from] FileError),
}
