//! Notes that the worker writes beside CRIU's images for its own restore: a small JSON file in the image directory.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_init::protocol::FUNCTION_PID;
use rekindle_randomness::Generator;
use rekindle_randomness::Kind;
use rekindle_wire::processor::InstructionSets;
use serde::{Deserialize, Serialize};

use super::connections::ConnectionNote;
use crate::host::own_mounts::OwnMount;
use crate::host::sandbox::Output;

/// The generators of one process of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessGenerators {
    /// The process's id in its pid namespace.
    pub pid: u32,
    /// The generators found in its memory.
    pub generators: Vec<Generator>,
}

/// Where a process keeps the device number of a file system of its sandbox's own, which is another in each copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNumbers {
    /// The process's id in its pid namespace.
    pub pid: u32,
    /// The file system.
    pub mount: OwnMount,
    /// Addresses in the process, each of 8 bytes.
    pub addresses: Vec<u64>,
}

/// Where a process keeps device and inode number of an open file on a container image's root. Both may be others in
/// each copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFile {
    /// The process's id in its pid namespace.
    pub pid: u32,
    /// A descriptor of the file in that process.
    pub descriptor: u32,
    /// Addresses in the process, each of 16 bytes.
    pub addresses: Vec<u64>,
}

/// Where processes keep numbers of files that are others in each copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileNumbers {
    /// Of files in `/tmp` and `/dev/shm`. None from earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_numbers: Vec<DeviceNumbers>,
    /// Of files elsewhere on a container image's root. None from earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root_files: Vec<RootFile>,
}

impl FileNumbers {
    pub(crate) fn count(&self) -> usize {
        let own = self.device_numbers.iter().map(|numbers| numbers.addresses.len());
        own.chain(self.root_files.iter().map(|file| file.addresses.len())).sum()
    }

    /// Returns the addresses in a process.
    pub(crate) fn of_process(&self, pid: u32) -> impl Iterator<Item = u64> {
        let own = self.device_numbers.iter().filter(move |numbers| numbers.pid == pid);
        let root = self.root_files.iter().filter(move |file| file.pid == pid);
        let own = own.flat_map(|numbers| &numbers.addresses);
        own.chain(root.flat_map(|file| &file.addresses)).copied()
    }
}

/// Name of the notes file.
pub const FILE: &str = "rekindle-notes.json";
/// Name of the private files' archive in the image directory.
pub const FILES_ARCHIVE: &str = "rekindle-files.tar";

/// Why the notes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NotesError {
    /// The file cannot be read or written.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// The notes are not what this version writes.
    #[error("{} is not understood", .0.display())]
    Malformed(PathBuf, #[source] serde_json::Error),
}

/// The processor that a snapshot was taken on has more instruction sets.
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

impl PipeNote {
    /// Returns the note of a function's output.
    ///
    /// # Errors
    /// Returns an error when its descriptor cannot be inspected.
    pub fn of(output: &Output) -> io::Result<Self> {
        Ok(Self {
            key: output.key()?,
            stream: output.stream.as_str().to_owned(),
        })
    }
}

/// State at the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureNotes {
    /// The function's outputs.
    pub pipes: Vec<PipeNote>,
    /// The random number generators that each copy's restore writes to. None in notes of earlier versions.
    #[serde(default)]
    pub generators: Vec<ProcessGenerators>,
    /// What is left for the runtime's after-restore hook, if the runtime said so before the checkpoint.
    #[serde(default)]
    pub after_restore: Option<AfterRestore>,
    /// Instruction sets of the host's processor. None in notes of earlier versions.
    #[serde(default, skip_serializing_if = "InstructionSets::is_empty")]
    pub instruction_sets: InstructionSets,
    /// Connections of the function to itself that copies get. None in notes of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionNote>,
    /// Whether the function's first process is a reaper, and the next one its program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reaper: bool,
    /// The numbers of files that each copy's restore writes.
    #[serde(flatten)]
    pub file_numbers: FileNumbers,
}

/// What is left for the after-restore hook of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AfterRestore {
    /// Number of hooks of the function.
    pub hooks: usize,
    /// Kinds of generators that the hook reseeds where the platform has not.
    pub reseeds: Vec<String>,
}

impl CaptureNotes {
    /// Checks that its processes run on a processor with `here`: they may use everything that their original processor
    /// had.
    ///
    /// # Errors
    /// Returns an error when the processor lacks some of that.
    pub fn runs_on(&self, here: InstructionSets) -> Result<(), OtherProcessorError> {
        let lacking = here.lacks(self.instruction_sets);
        if lacking.is_empty() {
            Ok(())
        } else {
            Err(OtherProcessorError(lacking))
        }
    }

    /// Returns the id of the process that answers for the function's hooks. A reaper forks its program at once, so
    /// that has the id after its own.
    fn program_pid(&self) -> i32 {
        FUNCTION_PID + i32::from(self.reaper)
    }

    /// Returns whether the after-restore hook has anything to do in a copy.
    pub fn is_hook_needed(&self) -> bool {
        let reseeded = self.reseeded();
        let is_done = |kind: &String| reseeded.split(',').any(|done| done == kind);
        let left = self.after_restore.as_ref();
        left.is_none_or(|left| left.hooks > 0 || !left.reseeds.iter().all(is_done))
    }

    /// Returns the kinds of generators that a restore writes to in the function's program, separated by commas.
    pub fn reseeded(&self) -> String {
        let pid = self.program_pid();
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
    /// Returns an error when the file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), NotesError> {
        let path = dir.join(FILE);
        let bytes = serde_json::to_vec(self).map_err(|e| NotesError::Malformed(path.clone(), e))?;
        std::fs::write(&path, bytes).map_err(|e| NotesError::File(path, e))
    }

    /// Reads the notes.
    ///
    /// # Errors
    /// Returns an error when they are missing or malformed.
    pub fn read(dir: &Path) -> Result<Self, NotesError> {
        let path = dir.join(FILE);
        let bytes = std::fs::read(&path).map_err(|e| NotesError::File(path.clone(), e))?;
        serde_json::from_slice(&bytes).map_err(|e| NotesError::Malformed(path, e))
    }
}
