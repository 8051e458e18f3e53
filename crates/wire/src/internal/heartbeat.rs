//! What workers report to the scheduler every second, and what it answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::InstanceInfo;
use crate::ids::{FunctionId, InstanceId, SnapshotId, VersionNumber, WorkerId};
use crate::internal::OrderTicket;
use crate::processor::InstructionSets;
use crate::renewal::MadeWith;
use crate::stats::WorkerLevels;

/// A worker's report to the scheduler, sent every second, and immediately when an instance ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The worker.
    pub worker: WorkerId,
    /// A new number at each start of the worker. A different one means that all earlier instances are gone.
    pub incarnation: u64,
    /// Number of the report since that start, from 1 on, so that a delayed report is not taken for a new one. 0 if
    /// reports are not numbered.
    #[serde(default)]
    pub number: u64,
    /// Address of its interface, `host:port`.
    pub address: String,
    /// Memory available to instances, in bytes.
    pub memory_capacity_bytes: u64,
    /// What else its host offers, and its location.
    #[serde(default)]
    pub offer: HostOffer,
    /// Whether it participates.
    #[serde(default)]
    pub presence: Presence,
    /// All of its instances.
    pub instances: Vec<InstanceInfo>,
    /// Fill levels of its pools and caches.
    #[serde(default)]
    pub levels: WorkerLevels,
    /// Its shortage of memory.
    #[serde(default)]
    pub pressure: MemoryPressure,
    /// The snapshots that it keeps. Sent if the scheduler's last response named another revision than the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<RestorableSnapshots>,
    /// Snapshots that it has found permanently damaged since its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedSnapshot>,
    /// Snapshots that it makes, uses and rejects.
    #[serde(default)]
    pub snapshots: SnapshotReport,
    /// The [revision](crate::secret::revision) of the secrets that each instance with secrets has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<InstanceId, u64>,
    /// What it shows of the order of each instance.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tickets: BTreeMap<InstanceId, OrderTicket>,
}

/// A worker's shortage of memory: that of its host or of its control group, whichever is worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryPressure {
    /// Percentage of the last ten seconds in which some task waited for memory. `None` if the kernel does not report
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub some: Option<f64>,
    /// Percentage of the time in which all tasks with work waited for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<f64>,
    /// Percentage of memory that is available without swapping. `None` if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<f64>,
}

/// Snapshots that a worker can restore sooner than others can. At most [`RESTORABLE_MAX`] of each kind, those that were
/// used last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestorableSnapshots {
    /// Increases with each change, from 1 on after the worker's start.
    pub revision: u64,
    /// Open snapshots, with their templates.
    pub templates: Vec<SnapshotId>,
    /// Snapshots that are not open, but have their chunks in the disk cache.
    #[serde(default)]
    pub cached: Vec<SnapshotId>,
}

/// Maximum number of snapshots of each kind in a worker's report.
pub const RESTORABLE_MAX: usize = 512;

/// What a worker's host offers besides memory, and its location.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostOffer {
    /// The host's name.
    #[serde(default)]
    pub host: String,
    /// Number of its processors.
    #[serde(default)]
    pub cpus: u32,
    /// Instruction sets of its processors.
    #[serde(default, skip_serializing_if = "InstructionSets::is_empty")]
    pub instruction_sets: InstructionSets,
    /// Maximum number of instances. 0 for as many as fit in its memory.
    #[serde(default)]
    pub instances_max: u32,
    /// Its zone. Workers of one zone fail together.
    #[serde(default)]
    pub zone: String,
    /// Labels set by its operator.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Whether a worker participates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It accepts new instances.
    #[default]
    Serving,
    /// It was told to stop: it finishes its requests in flight and accepts nothing new.
    Leaving,
    /// It has stopped. This is its last report.
    Left,
}

/// A permanently damaged snapshot in the store: a part of it is missing, or does not match its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The function that it belongs to.
    pub function: FunctionId,
    /// The version that it belongs to.
    pub version: VersionNumber,
    /// What is wrong with it.
    pub why: String,
}

/// Snapshots that a worker makes, uses and rejects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// What it makes snapshots with. `None` from a build that does not renew snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub makes: Option<MadeWith>,
    /// Snapshots that its instances were restored from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_use: Vec<SnapshotId>,
    /// Snapshots whose images it has rejected since its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedSnapshot>,
}

/// A snapshot whose images a worker rejected. Its version is booted there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The function that it belongs to.
    pub function: FunctionId,
    /// The version that it belongs to.
    pub version: VersionNumber,
    /// The image and field at fault.
    pub why: String,
}

/// The scheduler's response to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatResponse {
    /// Instances that the scheduler does not know or want. The worker stops them.
    pub stop: Vec<InstanceId>,
    /// Snapshots that the worker reported and that nothing new starts from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forget: Vec<SnapshotId>,
    /// The known revision of what the worker keeps. 0 for none.
    #[serde(default)]
    pub kept_revision: u64,
    /// Addresses at which gateways take calls of functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
}
