//! Versions of functions and their snapshots.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Reused;
use crate::error::ApiError;
use crate::function_config::FunctionConfig;
use crate::ids::{FunctionId, SnapshotId, VersionNumber};
use crate::renewal::{MadeWith, Renewal};

/// State of a version on its way to being live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VersionState {
    /// Accepted, waiting for a worker.
    Queued,
    /// Its filesystem is being built.
    Building,
    /// Its first instance is starting.
    Booting,
    /// Warm-up requests are being sent.
    Warming,
    /// It is being checkpointed and published.
    Snapshotting,
    /// Its snapshot is being restored once, and the copy is sent requests.
    Rehearsing,
    /// It is ready to serve. The versions that the alias `live` names serve the function's invocations.
    Live,
    /// It could not be made live. `error` has the reason.
    Failed,
}

impl VersionState {
    /// Every state, in order.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Building,
        Self::Booting,
        Self::Warming,
        Self::Snapshotting,
        Self::Rehearsing,
        Self::Live,
        Self::Failed,
    ];

    /// The state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Building => "building",
            Self::Booting => "booting",
            Self::Warming => "warming",
            Self::Snapshotting => "snapshotting",
            Self::Rehearsing => "rehearsing",
            Self::Live => "live",
            Self::Failed => "failed",
        }
    }

    /// Whether the version stays in this state on its own.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Live | Self::Failed)
    }
}

impl fmt::Display for VersionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One phase of a deploy with its duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PhaseTime {
    /// The phase.
    pub phase: VersionState,
    /// Duration in milliseconds.
    pub ms: f64,
}

/// Figures about a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSummary {
    /// Its id.
    pub id: SnapshotId,
    /// Memory of the checkpointed processes in bytes.
    pub memory_bytes: u64,
    /// Bytes of that memory in regions that were all zero and have no payload.
    pub zero_bytes: u64,
    /// Stored payload of all regions in bytes.
    pub stored_bytes: u64,
    /// The part of `stored_bytes` that the store already had.
    pub shared_bytes: u64,
    /// How long the processes were frozen, in milliseconds.
    pub frozen_ms: f64,
    /// What it was made with. `None` if an earlier version of the platform made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_with: Option<MadeWith>,
    /// Random number generators in its copies. `None` if an earlier version of the platform made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub randomness: Option<Randomness>,
    /// Result of restoring it once before it served. `None` if that was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rehearsal: Option<Rehearsal>,
    /// Warm-up requests that were answered 4xx before it was taken, each with its status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_warmups: Vec<String>,
}

/// A snapshot's first restore, which its deploy makes before the version goes live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rehearsal {
    /// Time from the order until the copy was ready, in milliseconds.
    pub restore_ms: f64,
    /// Number of pages in the recorded working set.
    pub pages: u64,
    /// What restores copies on the host that rehearsed. `None` in rehearsals by earlier workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_by: Option<RestoredBy>,
    /// Requests that the copy answered differently from the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// What restores a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum RestoredBy {
    /// A restore program.
    Program,
    /// CRIU.
    Criu {
        /// Why no program does.
        because: String,
    },
}

/// The random number generators in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Randomness {
    /// Number of generators that every copy has reseeded before it runs, by owner.
    pub reseeded: BTreeMap<String, u32>,
    /// Generators that were recognised but cannot be reseeded.
    pub repeating: Vec<Repeating>,
}

/// A library or runtime whose random numbers are the same in all copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Repeating {
    /// Its name.
    pub name: String,
    /// What repeats, and how to avoid it.
    pub advice: String,
}

/// A version of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    /// The function.
    pub function: FunctionId,
    /// Its number.
    pub version: VersionNumber,
    /// Its state.
    pub state: VersionState,
    /// Creation time in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// What its fn.toml says.
    #[serde(rename = "manifest", alias = "config")]
    pub config: FunctionConfig,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
    /// Its snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotSummary>,
    /// Why a live version has no snapshot although its config requests one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_error: Option<String>,
    /// The version that it shares files with, as only settings differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<Reused>,
    /// The phases of its deploy so far.
    #[serde(default)]
    pub phases: Vec<PhaseTime>,
    /// The pending renewal of its snapshot, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal: Option<Renewal>,
}
