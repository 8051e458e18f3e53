//! The directories that make up one group, in either version, and the operations common to all of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::files::{self, FileError};
use super::limits::{DiskLimit, Limits};
use super::{FUNCTION, HELD, KillError, v1, v2};
use crate::host::poll_until;

/// The file with the processes of a group.
pub(super) const PROCS: &str = "cgroup.procs";
/// Directories of a group in the version in use.
#[derive(Debug, Clone)]
pub(super) enum Layout {
    V1(Box<v1::Directories>),
    V2(v2::Directory),
}

impl Layout {
    pub(super) fn join(&self, name: &str) -> Self {
        match self {
            Self::V1(d) => Self::V1(Box::new(d.join(name))),
            Self::V2(d) => Self::V2(d.join(name)),
        }
    }

    pub(super) fn all(&self) -> Vec<PathBuf> {
        match self {
            Self::V1(d) => d.all(),
            Self::V2(d) => vec![d.0.clone()],
        }
    }

    /// Returns the directories that a process of the group joins.
    pub(super) fn joined(&self) -> Vec<PathBuf> {
        self.all()
            .into_iter()
            .chain(self.devices().map(Path::to_owned))
            .collect()
    }

    /// Returns the group that filters devices for all groups together, if it is in a hierarchy of its own.
    pub(super) fn devices(&self) -> Option<&Path> {
        match self {
            Self::V1(d) => d.devices.as_deref(),
            Self::V2(_) => None,
        }
    }

    /// Returns the group with another name below the same parent.
    pub(super) fn beside(&self, name: &str) -> Self {
        match self {
            Self::V1(d) => Self::V1(Box::new(d.beside(name))),
            Self::V2(d) => Self::V2(v2::Directory(d.0.with_file_name(name))),
        }
    }

    /// Returns the directory of the function's group.
    pub(super) fn function(&self) -> PathBuf {
        match self {
            Self::V1(d) => d.function(),
            Self::V2(d) => d.function(),
        }
    }

    /// Returns the directory of the function's processes that stay frozen longer than the others. It rarely exists.
    pub(super) fn held(&self) -> PathBuf {
        self.function().join(HELD)
    }

    pub(super) fn limit(&self, limits: &Limits) -> Result<(), FileError> {
        match self {
            Self::V1(d) => d.limit(limits),
            Self::V2(d) => d.limit(limits),
        }
    }

    pub(super) fn limit_disk(&self, limit: &DiskLimit) -> Result<(), FileError> {
        match self {
            Self::V1(d) => d.limit_disk(limit),
            Self::V2(d) => d.limit_disk(limit),
        }
    }

    /// Returns whether there are groups below it, apart from the function's.
    pub(super) fn has_children(&self) -> Result<bool, FileError> {
        for directory in self.all() {
            if files::child_directories(&directory)?
                .iter()
                .any(|name| name != FUNCTION)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the processes of this group and of the function's, each once.
    pub(super) fn pids(&self) -> Result<Vec<i32>, FileError> {
        let mut pids = Vec::new();
        for directory in self.all() {
            pids.extend(files::read_pids(&directory.join(PROCS))?);
        }
        for directory in [self.function(), self.held()] {
            pids.extend(files::read_pids(&directory.join(PROCS))?);
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Sends SIGKILL until no process is left. Returns the processes it met.
    pub(super) fn kill(&self, name: &str, limit: Duration) -> Result<Vec<i32>, KillError> {
        let mut met = self.pids()?;
        if met.is_empty() {
            return Ok(met);
        }
        match self {
            Self::V1(d) => d.stop_forks(),
            Self::V2(d) => d.stop_forks(),
        }
        let mut failed = None;
        let mut left = met.len();
        let gone = poll_until(limit, Duration::from_micros(500), || match self.kill_once() {
            Ok(pids) => {
                left = pids.len();
                met.extend(pids);
                left == 0
            }
            Err(e) => {
                failed = Some(e);
                true
            }
        });
        if let Some(e) = failed {
            return Err(e.into());
        }
        if !gone {
            return Err(KillError::Left {
                name: name.to_owned(),
                left,
                limit,
            });
        }
        met.sort_unstable();
        met.dedup();
        Ok(met)
    }

    fn kill_once(&self) -> Result<Vec<i32>, FileError> {
        if let Self::V2(d) = self
            && d.kill_all()?
        {
            return self.pids();
        }
        let pids = self.pids()?;
        for pid in &pids {
            // A process that is already gone is as good as killed.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        match self {
            Self::V1(d) => d.thaw_killed(),
            Self::V2(d) => d.thaw_killed(),
        }
        Ok(pids)
    }

    /// Removes the directories. They must contain no processes, and no groups except the function's.
    pub(super) fn remove(&self, limit: Duration) -> Result<(), FileError> {
        remove_directory(&self.held(), limit)?;
        remove_directory(&self.function(), limit)?;
        for directory in self.all() {
            remove_directory(&directory, limit)?;
        }
        Ok(())
    }
}

/// Moves processes to a group. Those that have ended are left out.
pub(super) fn move_to(directory: &Path, pids: &[i32]) -> Result<(), FileError> {
    for pid in pids {
        match files::write(&directory.join(PROCS), &pid.to_string()) {
            Err(e) if e.source.raw_os_error() == Some(libc::ESRCH) => {}
            moved => moved?,
        }
    }
    Ok(())
}

/// Removes a directory. The kernel releases a dead process's group a moment after the process is gone from
/// `cgroup.procs`.
pub(super) fn remove_directory(directory: &Path, limit: Duration) -> Result<(), FileError> {
    let mut answer = Ok(());
    poll_until(limit, Duration::from_millis(2), || {
        // In a fixture the control files are ordinary ones.
        #[cfg(test)]
        empty_fixture(directory);
        answer = std::fs::remove_dir(directory);
        !matches!(&answer, Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy)
    });
    match answer {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(FileError::new("remove", directory, e)),
        _ => Ok(()),
    }
}

/// Removes the ordinary files of a fixture directory, as the kernel does with control files.
#[cfg(test)]
fn empty_fixture(directory: &std::path::Path) {
    let in_kernel = directory.starts_with(super::CGROUP_ROOT);
    for entry in std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|_| !in_kernel)
    {
        let _ = std::fs::remove_file(entry.path());
    }
}
