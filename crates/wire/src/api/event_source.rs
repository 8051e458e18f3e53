//! Sources of events, as users and readers see them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event_source::{EventSource, SourceName};
use crate::ids::{FunctionId, VersionNumber};

/// A source of a version that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceInfo {
    /// The function.
    pub function: FunctionId,
    /// The version whose fn.toml has it.
    pub version: VersionNumber,
    /// What fn.toml says.
    pub source: EventSource,
    /// The function's timeout in milliseconds.
    pub timeout_ms: u64,
    /// How long its boot may take, in milliseconds. 0 from a scheduler that does not say.
    #[serde(default)]
    pub boot_timeout_ms: u64,
    /// Who reads it: what each has said within the last half minute.
    #[serde(default)]
    pub readers: Vec<SourceReader>,
}

/// A program that reads a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceReader {
    /// Its name.
    pub reader: String,
    /// How it gets on.
    pub progress: SourceProgress,
}

/// How reading a source goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It connects to the server.
    #[default]
    Connecting,
    /// It reads.
    Reading,
    /// The platform or the function takes no more at the moment.
    Throttled,
    /// The queue cannot be read, or the function cannot be called.
    Failing,
}

impl SourceState {
    /// The state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Reading => "reading",
            Self::Throttled => "throttled",
            Self::Failing => "failing",
        }
    }
}

/// How one reader gets on with a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceProgress {
    /// Its state.
    pub state: SourceState,
    /// Number of messages that wait in the queue. `None` if the server has not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// Number of messages that it has and are not settled.
    pub in_flight: u32,
    /// Number of batches that it may have in flight at the moment.
    pub concurrency: u32,
    /// Number of messages that succeeded since it began.
    pub succeeded: u64,
    /// Number of deliveries that failed since it began.
    pub failed: u64,
    /// Number of messages that it has made dead letters of.
    pub dead: u64,
    /// What is wrong, and how to mend it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// How one reader gets on with all sources of a namespace that it reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceReports {
    /// Its name, at most 100 characters.
    pub reader: String,
    /// The sources.
    #[serde(default)]
    pub sources: Vec<SourceReport>,
}

/// How one reader gets on with one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceReport {
    /// The function.
    pub function: FunctionId,
    /// The source.
    pub source: SourceName,
    /// How it gets on.
    pub progress: SourceProgress,
}
