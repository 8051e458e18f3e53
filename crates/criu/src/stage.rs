//! The points at which CRIU waits, and what can go wrong there and elsewhere.

use std::io;
use std::time::Duration;

/// A point in a dump or restore at which CRIU stops and waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Dump: every process that CRIU found is seized, and nothing was put into any.
    Seized,
    /// Dump: everything is written and the processes are still stopped.
    PostDump,
    /// Restore: the images have been read, and nothing has been restored yet.
    PreRestore,
    /// Restore: the processes have all their mappings and threads. Their privileges are set next.
    PostRestore,
    /// Restore: the processes have their memory, have registered their userfaultfd, and are about to run their first
    /// instruction.
    PreResume,
    /// Any other stage, by CRIU's name.
    Other(String),
}

/// Why the work at a stage failed.
pub type StageError = Box<dyn std::error::Error + Send + Sync>;

/// Why CRIU failed to do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CriuError {
    /// The socket broke because CRIU died.
    #[error("criu ended without an answer")]
    Died(#[source] io::Error),
    /// CRIU did not respond in time.
    #[error("criu did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The response cannot be decoded.
    #[error("criu's answer is not understood")]
    Malformed(#[source] prost::DecodeError),
    /// CRIU reported a failure.
    #[error("criu refused to {what}: {message} (errno {errno})")]
    Failed {
        /// The request.
        what: &'static str,
        /// Its message: the first real error in its log.
        message: String,
        /// Its errno, or 0.
        errno: i32,
    },
    /// The caller's work at a stage failed.
    #[error("at stage {0:?}")]
    Stage(Stage, #[source] StageError),
}
