//! The public admin API under `/v1/`: what `fn` and other clients send and receive. The gateway serves it, and the
//! OpenAPI document made from these types.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::ids::{FunctionName, InstanceId, SnapshotId, VersionNumber, WorkerId};
use crate::manifest::Manifest;
use crate::migration::Departed;
use crate::renewal::{MadeWith, Renewal};

/// How the instance that served an invocation came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartKind {
    /// An idle instance took it.
    Warm,
    /// A restored, frozen instance took it.
    Parked,
    /// Restored lazily from a snapshot on this request.
    Restored,
    /// Started from nothing on this request.
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

    /// Whether an instance had to be made: what counts as a cold start. To thaw a parked one does not.
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

/// Where a version stands on its way to being live.
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
    /// Its snapshot is being restored once, and the copy asked.
    Rehearsing,
    /// It is ready to serve; the newest live version of a function serves its invocations.
    Live,
    /// It could not be made live; `error` says why.
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

    /// Whether nothing more will happen to the version by itself.
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
    /// How long it took, milliseconds.
    pub ms: f64,
}

/// What a snapshot holds, in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSummary {
    /// Its id.
    pub id: SnapshotId,
    /// Memory of the checkpointed processes, bytes.
    pub memory_bytes: u64,
    /// Of it, bytes in regions that were all zero and have no payload.
    pub zero_bytes: u64,
    /// Payload of all regions as stored, bytes.
    pub stored_bytes: u64,
    /// Of `stored_bytes`, what the store already had.
    pub shared_bytes: u64,
    /// How long the processes stood still, milliseconds.
    pub frozen_ms: f64,
    /// What it was made with; `None` of one that an earlier version made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_with: Option<MadeWith>,
    /// What its copies draw; `None` of one that an earlier version made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub randomness: Option<Randomness>,
    /// What came of restoring it once, before it served; `None` where that was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rehearsal: Option<Rehearsal>,
}

/// A snapshot's first restore, which its deploy makes before the version goes live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rehearsal {
    /// From the order until the copy was ready, milliseconds.
    pub restore_ms: f64,
    /// Pages of the working set that was recorded.
    pub pages: u64,
    /// What of its requests the copy did not answer as the original had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The generators of random numbers in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Randomness {
    /// Those that every copy has reseeded before it runs, by whose they are, and how many.
    pub reseeded: BTreeMap<String, u32>,
    /// What was recognised and cannot be reseeded.
    pub repeating: Vec<Repeating>,
}

/// A library or runtime that copies share random numbers of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Repeating {
    /// Its name.
    pub name: String,
    /// What repeats, and what to do.
    pub advice: String,
}

/// A version of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    /// The function.
    pub function: FunctionName,
    /// Its number.
    pub version: VersionNumber,
    /// Where it stands.
    pub state: VersionState,
    /// Seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// Its manifest.
    pub manifest: Manifest,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
    /// Its snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotSummary>,
    /// Why a live version has no snapshot although its manifest asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_error: Option<String>,
    /// The phases it went through.
    #[serde(default)]
    pub phases: Vec<PhaseTime>,
    /// Whether its snapshot is to be made anew, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal: Option<Renewal>,
}

/// A function in a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSummary {
    /// Its name.
    pub name: FunctionName,
    /// The version that serves invocations.
    pub live: Option<VersionNumber>,
    /// The newest version, and where it stands.
    pub newest: VersionNumber,
    /// State of the newest version.
    pub state: VersionState,
    /// Its runtime's name.
    pub runtime: crate::manifest::Runtime,
    /// Memory limit of an instance, bytes.
    pub memory_bytes: u64,
    /// Instances running now.
    pub instances: u32,
    /// Where it is called, relative to the gateway.
    pub path: String,
}

/// Everything about one function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDetail {
    /// The listing's row.
    pub summary: FunctionSummary,
    /// Its versions, newest first (at most 50).
    pub versions: Vec<VersionInfo>,
    /// Its instances.
    pub instances: Vec<InstanceInfo>,
}

/// Where an instance stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// Being booted or restored.
    Starting,
    /// Ready for requests.
    Ready,
    /// Being checkpointed.
    Capturing,
    /// Frozen; the next request lets it go on.
    Parked,
    /// On its way to another host; requests wait for it.
    Moving,
    /// Going away; takes no new requests.
    Stopping,
}

impl InstanceState {
    /// The state in a word.
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
    pub function: FunctionName,
    /// The version.
    pub version: VersionNumber,
    /// The worker it runs on.
    pub worker: WorkerId,
    /// Where it stands.
    pub state: InstanceState,
    /// How it was started: restored or booted.
    pub started: StartKind,
    /// Invocations being served.
    pub in_flight: u32,
    /// Milliseconds since it last served one (0 while it does).
    pub idle_ms: u64,
    /// Memory charged to it now, bytes.
    pub memory_bytes: u64,
    /// More that it has and has not touched for a while: evicted to compressed swap, bytes.
    #[serde(default)]
    pub evicted_bytes: u64,
    /// How many leases there have been on it: the number of the newest that was used.
    #[serde(default)]
    pub lease_number: u64,
}

/// Move an instance to another worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigrateRequest {
    /// The worker: its id, its address with or without the port, or its host's name. Without it the one with most room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Let the original go on beside the copy, which gets an id of its own.
    #[serde(default)]
    pub clone: bool,
    /// How long invocations that are in it may take to end, milliseconds; 10,000 if it is not said, 300,000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
}

/// An instance has moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Migration {
    /// The instance; the copy, if it was one.
    pub instance: InstanceId,
    /// Where it was.
    pub from: WorkerId,
    /// Where it is.
    pub to: WorkerId,
    /// How long all of it took, milliseconds.
    pub took_ms: f64,
    /// What its source measured.
    pub departed: Departed,
}

/// A member of the cluster that shall not be believed any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokeRequest {
    /// `worker` or `gateway`.
    pub role: String,
    /// A worker's id, its address with or without the port, or its host's name; of a gateway the name in its
    /// certificate.
    pub name: String,
}

/// One that is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revocation {
    /// Its role.
    pub role: String,
    /// The name in its certificate: a worker's id.
    pub name: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: i64,
}

/// A worker, as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerInfo {
    /// Its id.
    pub id: WorkerId,
    /// Where its interface listens, `host:port`.
    pub address: String,
    /// Whether heartbeats arrive.
    pub alive: bool,
    /// Memory it may give to instances, bytes.
    pub memory_capacity_bytes: u64,
    /// Memory limits of its instances together, bytes.
    pub memory_reserved_bytes: u64,
    /// Instances on it.
    pub instances: u32,
    /// How many it takes; 0 for as many as fit its memory.
    #[serde(default)]
    pub instances_max: u32,
    /// Where it stands with the scheduler.
    pub state: WorkerState,
    /// Milliseconds since its last heartbeat.
    #[serde(default)]
    pub heartbeat_age_ms: u64,
    /// Its host's name.
    #[serde(default)]
    pub host: String,
    /// Its host's processors.
    #[serde(default)]
    pub cpus: u32,
    /// Where it stands; workers of one zone fail together.
    #[serde(default)]
    pub zone: String,
    /// What its operator says of it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Where a worker stands with the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It takes what it is given.
    Ready,
    /// It takes nothing new, as an operator or its own end wants it, and still has instances.
    Draining,
    /// The same, and nothing runs on it any more.
    Drained,
    /// Nothing was heard of it for a few seconds: it is given nothing new.
    Silent,
    /// It was silent for too long, or has stopped: what ran on it is forgotten.
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

/// One line a function wrote, or the platform wrote about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: i64,
    /// The instance.
    pub instance: InstanceId,
    /// The version.
    pub version: VersionNumber,
    /// `stdout`, `stderr` or `platform`.
    pub stream: String,
    /// The line without its end, at most 16 KiB.
    pub text: String,
}

/// Asks for a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CollectRequest {
    /// Remove nothing, only count.
    #[serde(default)]
    pub dry_run: bool,
    /// Make the object store this scheduler's although it belongs to another.
    #[serde(default)]
    pub take_over: bool,
}

/// What was removed of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Swept {
    /// How many.
    pub objects: u64,
    /// Their size, bytes.
    pub bytes: u64,
}

/// What a collection removed from the store, or would have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Collected {
    /// Nothing was removed, only counted.
    pub dry_run: bool,
    /// Old versions of functions that were let go of.
    pub versions: u64,
    /// Snapshots that nobody wants.
    pub snapshots: Swept,
    /// Objects of snapshots that were half published or half deleted.
    pub remains: Swept,
    /// Chunks that no snapshot refers to.
    pub chunks: Swept,
    /// Layers that neither a version nor a runtime has.
    pub layers: Swept,
    /// Uploaded folders that no version came from.
    pub sources: Swept,
    /// Chunks and layers that stay.
    pub left: Swept,
    /// Snapshots that could not be read: while they are there no chunk and no layer is removed.
    pub held_by: Vec<SnapshotId>,
    /// Whether there was more than one collection removes: run another.
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
