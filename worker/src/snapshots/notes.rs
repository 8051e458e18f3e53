//! What the worker notes beside CRIU's images, for its own restore: a small JSON file in the image directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rekindle_randomness::Kind;
use rekindle_wire::processor::InstructionSets;
use serde::{Deserialize, Serialize};

use crate::instance::randomness::ProcessGenerators;

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
}

/// The processor that a snapshot was taken on has more.
#[derive(Debug, thiserror::Error)]
#[error("this host's processor lacks {0}, which the processes may use")]
pub struct OtherProcessorError(InstructionSets);

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
    /// The generators of random numbers that each copy's restore writes to. None in notes of earlier versions.
    #[serde(default)]
    pub generators: Vec<ProcessGenerators>,
    /// What the runtime said before the checkpoint is left for its after-restore hook, if it said so.
    #[serde(default)]
    pub after_restore: Option<AfterRestore>,
    /// What the host's processor has. None in notes of earlier versions.
    #[serde(default, skip_serializing_if = "InstructionSets::is_empty")]
    pub instruction_sets: InstructionSets,
}

/// What is left for the after-restore hook of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AfterRestore {
    /// Hooks of the function.
    pub hooks: usize,
    /// Kinds of generators that it reseeds where the platform has not.
    pub reseeds: Vec<String>,
}

impl CaptureNotes {
    /// Whether its processes run on a processor that has `here`: they may use all that theirs had.
    ///
    /// # Errors
    /// When it lacks some of that.
    pub fn runs_on(&self, here: InstructionSets) -> Result<(), OtherProcessorError> {
        let lacking = here.lacks(self.instruction_sets);
        if lacking.is_empty() {
            Ok(())
        } else {
            Err(OtherProcessorError(lacking))
        }
    }

    /// Whether the after-restore hook has anything to do in a copy.
    pub fn is_hook_needed(&self, pid: i32) -> bool {
        let reseeded = self.reseeded(pid);
        let is_done = |kind: &String| reseeded.split(',').any(|done| done == kind);
        let left = self.after_restore.as_ref();
        left.is_none_or(|left| left.hooks > 0 || !left.reseeds.iter().all(is_done))
    }

    /// Which kinds of generators a restore writes to in process `pid`, as words with commas between them.
    pub fn reseeded(&self, pid: i32) -> String {
        let process = self
            .generators
            .iter()
            .filter(|process| process.pid.cast_signed() == pid);
        let kinds = process.flat_map(|process| &process.generators).map(|found| found.kind);
        let kinds: BTreeSet<_> = kinds.map(Kind::as_str).collect();
        kinds.into_iter().collect::<Vec<_>>().join(",")
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
