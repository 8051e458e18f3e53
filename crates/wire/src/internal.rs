//! Messages between gateway, scheduler and worker. [`crate::interface`] says which operation takes which.

mod keys;
mod quotas;
mod routes;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{InstanceInfo, SnapshotSummary, StartKind, VersionState};
use crate::error::ApiError;
use crate::ids::{FunctionId, GatewayId, InstanceId, SnapshotId, VersionNumber, WorkerId};
use crate::manifest::Manifest;
use crate::processor::InstructionSets;
use crate::renewal::MadeWith;
use crate::secret::Secret;
use crate::snapshot_key::SnapshotKey;
use crate::stats::WorkerLevels;

pub use keys::{KeysAnswer, KnownKey, KnownRule};
pub use quotas::{GatewayQuota, GatewayQuotas, ReachedEgress, UsageCounts, UsageEntry, UsageReport};
pub use routes::{FunctionRoutes, RoutesAnswer, StreamingVersions};

/// Extra time for a start in addition to its boot: a sandbox, its turn among other starts, and a failing restore.
const START_SPARE: Duration = Duration::from_secs(30);

/// How long a request may wait in its worker for the instance to be ready. The function's timeout only starts then.
pub fn start_limit(boot_timeout: Duration) -> Duration {
    boot_timeout + START_SPARE
}

/// How long a function may continue an invocation past its timeout. After that its instance takes nothing new and is
/// stopped.
pub const OVERDUE_LIMIT: Duration = Duration::from_secs(10);

/// A content-addressed archive of files in the store: `layers/{digest}.tar.zst`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerRef {
    /// BLAKE3 of the uncompressed tar, in hexadecimal.
    pub digest: String,
    /// Size of the uncompressed tar in bytes.
    pub tar_bytes: u64,
}

/// The snapshot of a runtime that versions start from, in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeSnapshot {
    /// Its id.
    pub snapshot: SnapshotId,
    /// The root filesystem that it was taken with. It is useless with any other.
    pub rootfs: LayerRef,
    /// See [`VersionSpec::snapshot_digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Which versions start from the same snapshot of their runtime, so that their snapshots share most of their memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// None: each version is booted from nothing.
    #[default]
    None,
    /// The versions of one function.
    Versions,
    /// The versions of all functions of a namespace with that runtime: they share one memory layout and one hash
    /// secret.
    Functions,
}

/// The functions whose versions start from one snapshot of their runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharers<'a> {
    /// One function.
    Function(&'a FunctionId),
    /// All functions of a namespace.
    Namespace(&'a str),
}

impl Sharing {
    /// Those that share with this function, if any do.
    pub fn sharers(self, function: &FunctionId) -> Option<Sharers<'_>> {
        match self {
            Self::None => None,
            Self::Versions => Some(Sharers::Function(function)),
            Self::Functions => Some(Sharers::Namespace(function.namespace())),
        }
    }
}

/// Everything that a worker must know to start an instance of a version. Immutable once the version is live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionSpec {
    /// The function.
    pub function: FunctionId,
    /// The version.
    pub version: VersionNumber,
    /// Its manifest.
    pub manifest: Manifest,
    /// The user id of its processes on every worker. One per function.
    pub uid: u32,
    /// The runtime's root filesystem.
    pub rootfs: LayerRef,
    /// The function's own files, mounted at `/app`.
    pub layer: LayerRef,
    /// Its snapshot, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// BLAKE3 of that snapshot's manifest as stored, in hexadecimal: a worker opens no other. `None` if it is not known
    /// yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_digest: Option<String>,
    /// Instruction sets of the processor that the snapshot was taken on. It is not restored on a worker that lacks any
    /// of them.
    #[serde(default, skip_serializing_if = "InstructionSets::is_empty")]
    pub instruction_sets: InstructionSets,
    /// Whether its program runs below a reaper, because it has processes that outlive their parents.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reaper: bool,
}

/// A gateway's request for an instance to send an invocation to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementRequest {
    /// The requesting gateway, which will hold the lease.
    pub gateway: GatewayId,
    /// The function.
    pub function: FunctionId,
    /// The version. By default the function's live one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionNumber>,
    /// Instances of the function on which the gateway holds a lease. It wants another one. If the scheduler lists a
    /// lease of the gateway that the gateway does not know of (a lost response), it is granted again.
    #[serde(default)]
    pub held: Vec<InstanceId>,
    /// Force a fresh instance with this start kind instead of the best available one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<StartKind>,
    /// How long the scheduler may keep the request waiting for a slot, in milliseconds.
    pub wait_ms: u64,
    /// Instances that are gone according to their workers, so that the scheduler forgets them.
    #[serde(default)]
    pub gone: Vec<InstanceId>,
    /// Addresses of workers that the gateway could not reach just now. It wants an instance elsewhere, unless there is
    /// no other worker.
    #[serde(default)]
    pub avoid: Vec<String>,
}

/// Slots for invocations on one instance, leased to the requesting gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// The instance, which is ready or about to be.
    pub instance: InstanceId,
    /// The worker's address, `host:port`.
    pub worker_address: String,
    /// The version that the instance runs.
    pub version: VersionNumber,
    /// Start kind of the first invocation sent under this placement.
    pub start: StartKind,
    /// Maximum number of invocations in flight that the gateway may have on it.
    pub slots: u32,
    /// The function's timeout in milliseconds.
    pub timeout_ms: u64,
    /// Time limit of its boot in milliseconds.
    #[serde(default = "crate::manifest::boot_timeout_ms")]
    pub boot_timeout_ms: u64,
    /// How long the gateway may keep using the slots, in milliseconds from now. Asking again renews the lease.
    pub lease_ms: u64,
    /// The lease's number, see [`crate::lease`]. 0 from a scheduler that does not number leases.
    #[serde(default)]
    pub lease_number: u64,
    /// Whether an invocation that may have reached the function may be sent again elsewhere.
    #[serde(default)]
    pub idempotent: bool,
    /// The instance's memory limit in bytes. 0 from a scheduler that does not say.
    #[serde(default)]
    pub memory_bytes: u64,
}

/// A gateway's report on its leases. Sent when a lease is returned, and before one expires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// The gateway.
    pub gateway: GatewayId,
    /// Leases that it keeps using, which are renewed for another `lease_ms`.
    #[serde(default)]
    pub held: Vec<InstanceId>,
    /// The numbers of those leases, in the same order. A restarted scheduler continues from them.
    #[serde(default)]
    pub numbers: Vec<u64>,
    /// Leases that it returns.
    #[serde(default)]
    pub returned: Vec<ReturnedLease>,
}

/// A returned lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReturnedLease {
    /// The instance.
    pub instance: InstanceId,
    /// Whether the instance has answered an invocation, so that the next one on it is warm.
    pub served: bool,
    /// Milliseconds since the last invocation on it ended.
    pub idle_ms: u64,
    /// Whether an invocation timed out and may still occupy the instance. An instance with a concurrency of one is then
    /// stopped.
    #[serde(default)]
    pub stuck: bool,
    /// Invocations that may still be in flight on it although nobody waits for them. The worker's next heartbeat gives
    /// their actual number.
    #[serde(default)]
    pub busy: u32,
}

/// What a gateway must do with its leases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// Instances to send nothing new to. Their leases must be returned as soon as they are free.
    pub give_back: Vec<InstanceId>,
}

/// Start an instance of a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartInstance {
    /// The id of the new instance.
    pub instance: InstanceId,
    /// Whether to restore or boot. A restore that fails before the function ran falls back to a boot.
    pub start: StartKind,
    /// Freeze it as soon as it is ready, unless it has a request in flight by then.
    #[serde(default)]
    pub park: bool,
    /// The version.
    pub spec: VersionSpec,
    /// The secrets that its manifest names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The key of its namespace, if snapshots there are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_key: Option<SnapshotKey>,
}

/// Build, boot, warm up and snapshot a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrepareRequest {
    /// The id of the booted instance, which keeps running afterwards.
    pub instance: InstanceId,
    /// The function.
    pub function: FunctionId,
    /// The version.
    pub version: VersionNumber,
    /// The user id of its processes.
    pub uid: u32,
    /// Its manifest.
    pub manifest: Manifest,
    /// Key of its uploaded folder in the store: `sources/{digest}.tar.gz`.
    pub source_key: String,
    /// The versions with which it shares the snapshot of its runtime.
    #[serde(default)]
    pub sharing: Sharing,
    /// The snapshot of its runtime that other versions have started from. `None` if the scheduler knows of none: then
    /// the one named in the store is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_snapshot: Option<RuntimeSnapshot>,
    /// The layers of a live version whose snapshot is renewed, so that they are not built again. Its instance serves no
    /// requests and ends with the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<BuiltLayers>,
    /// The secrets that its manifest names. The instance whose memory becomes the snapshot gets none of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The key of its namespace, if snapshots there are encrypted: its own is encrypted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_key: Option<SnapshotKey>,
}

/// The layers of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltLayers {
    /// The runtime's root filesystem.
    pub rootfs: LayerRef,
    /// The function's own files.
    pub layer: LayerRef,
    /// See [`VersionSpec::reaper`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reaper: bool,
}

/// A worker's progress in preparing a version, one JSON object per line. The last one is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[expect(clippy::large_enum_variant, reason = "a handful exist for each deploy")]
pub enum PrepareEvent {
    /// A phase starts.
    Phase {
        /// The phase.
        phase: VersionState,
    },
    /// The version can serve.
    Done {
        /// What to start from now on.
        spec: VersionSpec,
        /// Figures about its snapshot.
        snapshot: Option<SnapshotSummary>,
        /// Why there is no snapshot although the manifest requests one.
        snapshot_error: Option<String>,
        /// Whether that is for lack of disk space on this worker, so that another one may succeed.
        #[serde(default)]
        no_room: bool,
        /// The snapshot of its runtime that it started from, or that was taken for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runtime_snapshot: Option<RuntimeSnapshot>,
    },
    /// The version cannot serve.
    Failed {
        /// The cause.
        error: ApiError,
    },
}

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
    pub offer: Offer,
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
    pub kept: Option<Kept>,
    /// Snapshots that it has found permanently damaged since its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedSnapshot>,
    /// Snapshots that it makes, uses and rejects.
    #[serde(default)]
    pub snapshots: SnapshotReport,
    /// The [revision](crate::secret::revision) of the secrets that each instance with secrets has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<InstanceId, u64>,
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

/// Snapshots that a worker can restore sooner than others can. At most [`KEPT_MAX`] of each kind, the most recently
/// used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Increases with each change, from 1 on after the worker's start.
    pub revision: u64,
    /// Open snapshots, with their templates.
    pub templates: Vec<SnapshotId>,
    /// Snapshots that are not open, but have their chunks in the disk cache.
    #[serde(default)]
    pub cached: Vec<SnapshotId>,
}

/// Maximum number of snapshots of each kind in a worker's report.
pub const KEPT_MAX: usize = 512;

/// What a worker's host offers besides memory, and its location.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
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
pub struct HeartbeatAnswer {
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

/// Name, alongside those of runtimes, of the tools that install dependencies. They are mounted under a runtime's root
/// filesystem.
pub const BUILD_TOOLS: &str = "build";

/// The current archive of a runtime's root filesystem: the contents of `runtimes/{base}.json` in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeAlias {
    /// The archive.
    pub layer: LayerRef,
    /// Its contents: package to version.
    #[serde(default)]
    pub packages: BTreeMap<String, String>,
}
