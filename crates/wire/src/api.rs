//! The public admin API under `/v1/`: requests and responses of `fn` and other clients. The gateway serves it, together
//! with the OpenAPI document generated from these types.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::ids::{FunctionId, InstanceId, SnapshotId, VersionNumber, WorkerId};
use crate::manifest::Manifest;
use crate::migration::Departed;
use crate::renewal::{MadeWith, Renewal};

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
    /// It is ready to serve. The newest live version of a function serves its invocations.
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
    /// Requests that the copy answered differently from the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
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
    /// Its manifest.
    pub manifest: Manifest,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
    /// Its snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotSummary>,
    /// Why a live version has no snapshot although its manifest requests one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_error: Option<String>,
    /// The phases of its deploy so far.
    #[serde(default)]
    pub phases: Vec<PhaseTime>,
    /// The pending renewal of its snapshot, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal: Option<Renewal>,
}

/// A function in a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSummary {
    /// Its id.
    pub name: FunctionId,
    /// The version that serves invocations.
    pub live: Option<VersionNumber>,
    /// The newest version.
    pub newest: VersionNumber,
    /// State of the newest version.
    pub state: VersionState,
    /// Its runtime's name.
    pub runtime: crate::manifest::Runtime,
    /// Its root filesystem, which says the version of its interpreter. `None` from an earlier version of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<crate::manifest::Base>,
    /// Memory limit of an instance in bytes.
    pub memory_bytes: u64,
    /// Instances running now.
    pub instances: u32,
    /// Path of its invocations, relative to the gateway.
    pub path: String,
}

/// Everything about one function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDetail {
    /// Its row in the listing.
    pub summary: FunctionSummary,
    /// Its versions, newest first (at most 50).
    pub versions: Vec<VersionInfo>,
    /// Its instances.
    pub instances: Vec<InstanceInfo>,
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

/// Migrates an instance to another worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigrateRequest {
    /// The worker: its id, its address with or without the port, or its host's name. By default, the worker with the
    /// most room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Keep the original running beside the copy, which gets its own id.
    #[serde(default)]
    pub clone: bool,
    /// Time limit for invocations in flight, in milliseconds. The default is 10,000 and the maximum 300,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
}

/// A completed migration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Migration {
    /// The instance, or the copy if it was cloned.
    pub instance: InstanceId,
    /// The source.
    pub from: WorkerId,
    /// The target.
    pub to: WorkerId,
    /// Total duration in milliseconds.
    pub took_ms: f64,
    /// Measurements of the source.
    pub departed: Departed,
}

/// A member of the cluster whose certificate is to be revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokeRequest {
    /// `worker` or `gateway`.
    pub role: String,
    /// A worker's id, its address with or without the port, or its host's name. For a gateway, the name in its
    /// certificate.
    pub name: String,
}

/// A revoked member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revocation {
    /// Its role.
    pub role: String,
    /// The name in its certificate. For a worker, its id.
    pub name: String,
    /// Time of the revocation, in seconds since 1970.
    pub since_unix_s: i64,
}

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

/// The platform as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The platform's version.
    pub version: String,
    /// Its workers.
    pub workers: Vec<WorkerInfo>,
    /// Functions deployed.
    pub functions: u32,
    /// Instances running.
    pub instances: Vec<InstanceInfo>,
}

/// A line that a function wrote, or that the platform wrote about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// Time in milliseconds since the Unix epoch.
    pub unix_ms: i64,
    /// The instance.
    pub instance: InstanceId,
    /// The version.
    pub version: VersionNumber,
    /// `stdout`, `stderr` or `platform`.
    pub stream: String,
    /// The line without its newline, at most 16 KiB.
    pub text: String,
}

/// Requests a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CollectRequest {
    /// Only count, and remove nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Claim the object store for this scheduler although it belongs to another.
    #[serde(default)]
    pub take_over: bool,
}

/// Objects of one kind that were removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Swept {
    /// Number of objects.
    pub objects: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

/// What a collection removed from the store, or would have removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Collected {
    /// Whether it only counted and removed nothing.
    pub dry_run: bool,
    /// Number of old versions of functions that were removed.
    pub versions: u64,
    /// Snapshots that are not needed.
    pub snapshots: Swept,
    /// Objects of partly published or partly deleted snapshots.
    pub remains: Swept,
    /// Chunks that no snapshot refers to.
    pub chunks: Swept,
    /// Layers that neither a version nor a runtime uses.
    pub layers: Swept,
    /// Uploaded folders that no version was built from.
    pub sources: Swept,
    /// Chunks and layers that remain.
    pub left: Swept,
    /// Snapshots that could not be read. While they exist, no chunk and no layer is removed.
    pub held_by: Vec<SnapshotId>,
    /// Whether there was more to remove than one collection does. If so, run another.
    pub more: bool,
}

impl Collected {
    /// Everything that was removed.
    pub fn total(&self) -> Swept {
        let all = [self.snapshots, self.remains, self.chunks, self.layers, self.sources];
        Swept {
            objects: all.iter().map(|s| s.objects).sum(),
            bytes: all.iter().map(|s| s.bytes).sum(),
        }
    }
}
