//! What the worker notes beside CRIU's images, for its own restore: a small JSON file in the image directory.

use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The notes' file name.
pub const FILE: &str = "rekindle-notes.json";
/// The private files' archive, in the image directory.
pub const FILES_ARCHIVE: &str = "rekindle-files.tar";

/// Why the notes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NotesError {
    /// Reading or writing failed.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// They are not what this version writes.
    #[error("{} is not understood", .0.display())]
    Malformed(PathBuf, #[source] serde_json::Error),
    /// A time that no clock could have shown.
    #[error("the notes say that a clock showed {0} ns")]
    NoSuchTime(i64),
    /// A clock cannot be read.
    #[error("read the clock")]
    Clock(#[source] nix::Error),
}

/// A pipe that leads out of the sandbox, by the name CRIU gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipeNote {
    /// `pipe:[inode]`.
    pub key: String,
    /// `stdout` or `stderr`.
    pub stream: String,
}

/// What was true at the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureNotes {
    /// The function's outputs.
    pub pipes: Vec<PipeNote>,
    /// Its monotonic clock, nanoseconds.
    pub monotonic_ns: i64,
    /// Its boot-time clock, nanoseconds.
    pub boottime_ns: i64,
}

fn clock_ns(clock: ClockId) -> Result<i64, NotesError> {
    let now = clock_gettime(clock).map_err(NotesError::Clock)?;
    Ok(now.tv_sec() * 1_000_000_000 + now.tv_nsec())
}

impl CaptureNotes {
    /// Notes of now, for a sandbox whose clocks are those of the host.
    ///
    /// # Errors
    /// When a clock cannot be read.
    pub fn now(pipes: Vec<PipeNote>) -> Result<Self, NotesError> {
        Ok(Self {
            pipes,
            monotonic_ns: clock_ns(ClockId::CLOCK_MONOTONIC)?,
            boottime_ns: clock_ns(ClockId::CLOCK_BOOTTIME)?,
        })
    }

    /// How far a new sandbox's clocks must be ahead of the host's so that the function's go on from the checkpoint.
    ///
    /// # Errors
    /// When a clock cannot be read.
    pub fn clock_offsets(&self) -> Result<(i64, i64), NotesError> {
        let ahead = |noted: i64, clock| noted.checked_sub(clock_ns(clock)?).ok_or(NotesError::NoSuchTime(noted));
        Ok((
            ahead(self.monotonic_ns, ClockId::CLOCK_MONOTONIC)?,
            ahead(self.boottime_ns, ClockId::CLOCK_BOOTTIME)?,
        ))
    }

    /// Writes the notes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), NotesError> {
        let path = dir.join(FILE);
        let bytes = serde_json::to_vec(self).map_err(|e| NotesError::Malformed(path.clone(), e))?;
        std::fs::write(&path, bytes).map_err(|e| NotesError::File(path, e))
    }

    /// Reads the notes.
    ///
    /// # Errors
    /// When they are missing or malformed.
    pub fn read(dir: &Path) -> Result<Self, NotesError> {
        let path = dir.join(FILE);
        let bytes = std::fs::read(&path).map_err(|e| NotesError::File(path.clone(), e))?;
        serde_json::from_slice(&bytes).map_err(|e| NotesError::Malformed(path, e))
    }
}
