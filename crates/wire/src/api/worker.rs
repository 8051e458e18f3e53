//! Workers, as users see them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::WorkerId;

/// A worker, as seen by the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerInfo {
    /// Its id.
    pub id: WorkerId,
    /// Address of its interface, `host:port`.
    pub address: String,
    /// Whether its heartbeats arrive.
    pub alive: bool,
    /// Memory available to instances, in bytes.
    pub memory_capacity_bytes: u64,
    /// Total of its instances' memory limits in bytes.
    pub memory_reserved_bytes: u64,
    /// Instances on it.
    pub instances: u32,
    /// Maximum number of instances. 0 for as many as fit in its memory.
    #[serde(default)]
    pub instances_max: u32,
    /// Its state.
    pub state: WorkerState,
    /// Milliseconds since its last heartbeat.
    #[serde(default)]
    pub heartbeat_age_ms: u64,
    /// Name of its host.
    #[serde(default)]
    pub host: String,
    /// Number of its host's processors.
    #[serde(default)]
    pub cpus: u32,
    /// Its zone. Workers of one zone fail together.
    #[serde(default)]
    pub zone: String,
    /// Labels set by its operator.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// State of a worker in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It accepts new instances.
    Ready,
    /// It accepts nothing new, because an operator drains it or it is stopping, but still has instances.
    Draining,
    /// It accepts nothing new, and no instances are left.
    Drained,
    /// It has sent no heartbeat for a few seconds, and is given nothing new.
    Silent,
    /// It was silent for too long, or has stopped. Its instances are forgotten.
    Gone,
}

impl WorkerState {
    /// The state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Silent => "silent",
            Self::Gone => "gone",
        }
    }
}
