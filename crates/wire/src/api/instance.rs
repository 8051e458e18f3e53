//! Instances, and how each was started.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{FunctionId, InstanceId, VersionNumber, WorkerId};

/// How the instance that served an invocation was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartKind {
    /// An idle instance served it.
    Warm,
    /// A parked instance was thawed to serve it.
    Parked,
    /// An instance was restored lazily from a snapshot for this request.
    Restored,
    /// An instance was booted for this request.
    Booted,
}

impl StartKind {
    /// The word used in `X-Fn-Start` and everywhere else.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Parked => "parked",
            Self::Restored => "restored",
            Self::Booted => "booted",
        }
    }

    /// Whether an instance had to be created, which counts as a cold start. Thawing a parked one does not.
    pub fn is_cold(self) -> bool {
        matches!(self, Self::Restored | Self::Booted)
    }
}

impl fmt::Display for StartKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for StartKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Warm, Self::Parked, Self::Restored, Self::Booted]
            .into_iter()
            .find(|k| k.as_str() == text)
            .ok_or_else(|| format!("\"{text}\" is not a start kind: use warm, parked, restored or booted"))
    }
}

/// State of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// Being booted or restored.
    Starting,
    /// Ready for requests.
    Ready,
    /// Being checkpointed.
    Capturing,
    /// Frozen. The next request thaws it.
    Parked,
    /// Migrating to another host. Requests wait for it.
    Moving,
    /// Stopping. It takes no new requests.
    Stopping,
}

impl InstanceState {
    /// The state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Capturing => "capturing",
            Self::Parked => "parked",
            Self::Moving => "moving",
            Self::Stopping => "stopping",
        }
    }
}

/// A running copy of a function version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceInfo {
    /// Its id.
    pub id: InstanceId,
    /// The function.
    pub function: FunctionId,
    /// The version.
    pub version: VersionNumber,
    /// The worker it runs on.
    pub worker: WorkerId,
    /// Its state.
    pub state: InstanceState,
    /// Whether it was restored or booted.
    pub started: StartKind,
    /// Number of invocations in flight.
    pub in_flight: u32,
    /// Milliseconds since it last served an invocation (0 while it does).
    pub idle_ms: u64,
    /// Memory currently charged to it, in bytes.
    pub memory_bytes: u64,
    /// Its memory that was evicted to compressed swap because it was not touched for a while, in bytes.
    #[serde(default)]
    pub evicted_bytes: u64,
    /// Number of the newest lease that was used on it.
    #[serde(default)]
    pub lease_number: u64,
}
