//! What gateway, scheduler and worker say to each other. Every call carries the cluster's secret in
//! [`crate::headers::CLUSTER_TOKEN`]; errors are [`crate::ApiError`] as JSON.
//!
//! | caller → callee | call | body → answer |
//! |---|---|---|
//! | gateway → scheduler | `POST /internal/placements` | [`PlacementRequest`] → [`Placement`] |
//! | gateway → scheduler | `POST /internal/leases` | [`LeaseReport`] → [`LeaseAnswer`] |
//! | gateway → scheduler | `GET /internal/recalls?gateway=ID&wait_ms=N` | → [`LeaseAnswer`], as soon as there is something to give back |
//! | gateway → scheduler | `POST /internal/traffic` | [`TrafficReport`](crate::stats::TrafficReport) → [`TrafficAnswer`](crate::stats::TrafficAnswer) |
//! | gateway → scheduler | `ANY /v1/…` | the admin API, passed on once the key was checked |
//! | worker → scheduler | `POST /internal/heartbeat` | [`Heartbeat`] → [`HeartbeatAnswer`] |
//! | scheduler → worker | `POST /instances` | [`StartInstance`] → 202, before the instance is ready |
//! | scheduler → worker | `DELETE /instances/{id}?if_idle=true` | → 204, or 409 `conflict` while it serves a request |
//! | scheduler → worker | `POST /prepare` | [`PrepareRequest`] → lines of [`PrepareEvent`] |
//! | scheduler → worker | `GET /logs/{function}?tail=N&follow=BOOL` | → lines of [`crate::api::LogLine`] |
//! | scheduler → worker | `DELETE /functions/{name}` | stops its instances, removes its logs → 204 |
//! | gateway → worker | `ANY /invoke/{instance}/{path}` | the invocation; streams both ways |

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{InstanceInfo, SnapshotSummary, StartKind, VersionState};
use crate::error::ApiError;
use crate::ids::{FunctionName, GatewayId, InstanceId, SnapshotId, VersionNumber, WorkerId};
use crate::manifest::Manifest;
use crate::processor::InstructionSets;
use crate::renewal::MadeWith;
use crate::stats::WorkerLevels;

/// What a start may take beside its boot: a sandbox, a turn among other starts, and a restore that fails.
const START_SPARE: Duration = Duration::from_secs(30);

/// How long a request waits in its worker for the instance to be ready. The function's timeout begins only then.
pub fn start_limit(boot_timeout: Duration) -> Duration {
    boot_timeout + START_SPARE
}

/// How long a function may go on with an invocation past its timeout; then its instance takes nothing new and is stopped.
pub const OVERDUE_LIMIT: Duration = Duration::from_secs(10);

/// A content-addressed archive of files in the store: `layers/{digest}.tar.zst`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerRef {
    /// BLAKE3 of the uncompressed tar, in hexadecimal.
    pub digest: String,
    /// Size of the uncompressed tar, bytes.
    pub tar_bytes: u64,
}

/// The snapshot of a runtime that versions begin as; in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeSnapshot {
    /// Its id.
    pub snapshot: SnapshotId,
    /// The root filesystem it was made with: with another it is of no use.
    pub rootfs: LayerRef,
    /// See [`VersionSpec::snapshot_digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Which versions begin as the same snapshot of their runtime, so that their snapshots have most of their memory in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// None: each is booted from nothing.
    #[default]
    None,
    /// Those of one function.
    Versions,
    /// Those of all functions of the runtime: they have one layout of their memory, and one hash secret.
    Functions,
}

/// All a worker must know to start an instance of a version. Immutable once the version is live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionSpec {
    /// The function.
    pub function: FunctionName,
    /// The version.
    pub version: VersionNumber,
    /// Its manifest.
    pub manifest: Manifest,
    /// The user id its processes have on every worker; one per function.
    pub uid: u32,
    /// The runtime's root filesystem.
    pub rootfs: LayerRef,
    /// The function's own files, mounted at `/app`.
    pub layer: LayerRef,
    /// Its snapshot, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// BLAKE3 of that snapshot's manifest as it lies in the store, in hexadecimal: a worker opens no other. `None`
    /// where it is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_digest: Option<String>,
    /// What the processor had that the snapshot was taken on: it is restored on no worker that lacks some of it.
    #[serde(default, skip_serializing_if = "InstructionSets::is_empty")]
    pub instruction_sets: InstructionSets,
}

/// A gateway asks where to send an invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementRequest {
    /// The gateway that asks; the lease will be its own.
    pub gateway: GatewayId,
    /// The function.
    pub function: FunctionName,
    /// Instances of the function the gateway holds a lease on; it wants another one. A lease the scheduler believes it has
    /// and it does not know of (a lost answer) is granted again.
    #[serde(default)]
    pub held: Vec<InstanceId>,
    /// Start a fresh instance this way rather than taking what is best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<StartKind>,
    /// How long the scheduler may keep the request waiting for a slot, milliseconds.
    pub wait_ms: u64,
    /// Instances their worker said are gone, so that the scheduler forgets them.
    #[serde(default)]
    pub gone: Vec<InstanceId>,
    /// Addresses of workers the gateway could not reach just now: it wants an instance elsewhere, unless there is no other worker.
    #[serde(default)]
    pub avoid: Vec<String>,
}

/// A slot for invocations on one instance, leased to the asking gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// The instance, ready or about to be.
    pub instance: InstanceId,
    /// The worker's address, `host:port`.
    pub worker_address: String,
    /// The function's live version.
    pub version: VersionNumber,
    /// How the first invocation sent on this placement starts.
    pub start: StartKind,
    /// Invocations the gateway may have on it at once.
    pub slots: u32,
    /// The function's timeout, milliseconds.
    pub timeout_ms: u64,
    /// The longest its boot may take, milliseconds.
    #[serde(default = "crate::manifest::boot_timeout_ms")]
    pub boot_timeout_ms: u64,
    /// How long the gateway may keep using the slots, milliseconds from now; asking again renews it.
    pub lease_ms: u64,
    /// The lease's number, see [`crate::lease`]; 0 from a scheduler that does not number them.
    #[serde(default)]
    pub lease_number: u64,
    /// Whether an invocation that may have reached the function may be sent again elsewhere.
    #[serde(default)]
    pub idempotent: bool,
}

/// A gateway tells what became of its leases. Sent when a lease is returned, and before one runs out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// The gateway.
    pub gateway: GatewayId,
    /// Leases it keeps using: renewed for another `lease_ms`.
    #[serde(default)]
    pub held: Vec<InstanceId>,
    /// The numbers of those leases, in the same order: a scheduler that was restarted goes on from them.
    #[serde(default)]
    pub numbers: Vec<u64>,
    /// Leases it gives back.
    #[serde(default)]
    pub returned: Vec<ReturnedLease>,
}

/// A lease that ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReturnedLease {
    /// The instance.
    pub instance: InstanceId,
    /// Whether the instance has answered an invocation, so that the next one on it is warm.
    pub served: bool,
    /// Milliseconds since an invocation last ended on it.
    pub idle_ms: u64,
    /// Whether an invocation ran into its timeout and may still occupy the instance: one that serves a single invocation
    /// at a time is stopped.
    #[serde(default)]
    pub stuck: bool,
    /// Invocations that may still be in it although nobody waits for them; the worker's next heartbeat says how many there are.
    #[serde(default)]
    pub busy: u32,
}

/// What a gateway shall do with its leases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// Send nothing new to these, and return their leases as soon as they are free.
    pub give_back: Vec<InstanceId>,
}

/// Start an instance of a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartInstance {
    /// The id it shall have.
    pub instance: InstanceId,
    /// Restored or booted. A restore that fails before the function ran falls back to a boot.
    pub start: StartKind,
    /// Freeze it as soon as it is ready, unless a request is in it by then.
    #[serde(default)]
    pub park: bool,
    /// The version.
    pub spec: VersionSpec,
}

/// Build, boot, warm up and snapshot a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrepareRequest {
    /// The id of the instance that is booted; it goes on running afterwards.
    pub instance: InstanceId,
    /// The function.
    pub function: FunctionName,
    /// The version.
    pub version: VersionNumber,
    /// The user id of its processes.
    pub uid: u32,
    /// Its manifest.
    pub manifest: Manifest,
    /// Where its uploaded folder lies in the store: `sources/{digest}.tar.gz`.
    pub source_key: String,
    /// What it shares the snapshot of its runtime with.
    #[serde(default)]
    pub sharing: Sharing,
    /// The snapshot of its runtime that others have begun as. `None` where the scheduler knows of none: then the one
    /// that the store names is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_snapshot: Option<RuntimeSnapshot>,
    /// Of a live version whose snapshot is made anew: its layers, which are not built once more. Its instance serves
    /// nobody and ends with the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<BuiltLayers>,
}

/// What a version is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltLayers {
    /// The runtime's root filesystem.
    pub rootfs: LayerRef,
    /// The function's own files.
    pub layer: LayerRef,
}

/// What a worker tells while it prepares a version, one JSON object a line. The last is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[expect(clippy::large_enum_variant, reason = "a handful exist for each deploy")]
pub enum PrepareEvent {
    /// A phase begins.
    Phase {
        /// Which one.
        phase: VersionState,
    },
    /// The version can serve.
    Done {
        /// What to start from now on.
        spec: VersionSpec,
        /// Its snapshot in numbers.
        snapshot: Option<SnapshotSummary>,
        /// Why there is none although the manifest asks for one.
        snapshot_error: Option<String>,
        /// Whether that is for want of room on this worker's disk, so that another may do better.
        #[serde(default)]
        no_room: bool,
        /// The snapshot of its runtime that it has begun as, or that was made for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runtime_snapshot: Option<RuntimeSnapshot>,
    },
    /// The version cannot serve.
    Failed {
        /// The cause.
        error: ApiError,
    },
}

/// A worker's report to the scheduler, sent each second and at once when an instance ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The worker.
    pub worker: WorkerId,
    /// A number made anew at each start of the worker; another one means that all older instances are gone.
    pub incarnation: u64,
    /// Counts the reports since that start, from 1 on: one that was held up on its way is not taken for news. 0 where they are not counted.
    #[serde(default)]
    pub number: u64,
    /// Where its interface listens, `host:port`.
    pub address: String,
    /// Memory it may give to instances, bytes.
    pub memory_capacity_bytes: u64,
    /// What else it offers, and where it stands.
    #[serde(default)]
    pub offer: Offer,
    /// Whether it takes part.
    #[serde(default)]
    pub presence: Presence,
    /// Its instances, all of them.
    pub instances: Vec<InstanceInfo>,
    /// How full its pools and caches are.
    #[serde(default)]
    pub levels: WorkerLevels,
    /// How short of memory it is.
    #[serde(default)]
    pub pressure: MemoryPressure,
    /// What snapshots it keeps, when the scheduler's last answer named another revision than this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// Snapshots it found damaged for good since its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedSnapshot>,
    /// What it makes, uses and refuses of snapshots.
    #[serde(default)]
    pub snapshots: SnapshotReport,
}

/// How short of memory a worker is: of its host and of the control group it runs in, the one that is shorter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryPressure {
    /// The share of the last ten seconds in which some task waited for memory, per cent; `None` where the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub some: Option<f64>,
    /// The share in which all tasks that had work waited for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<f64>,
    /// Memory that can be had without swapping, per cent of all; `None` where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<f64>,
}

/// Snapshots that a worker can restore sooner than others can. At most [`KEPT_MAX`] of each, those used last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Another number each time that it has changed, from 1 on after the worker's start.
    pub revision: u64,
    /// Open, with their templates.
    pub templates: Vec<SnapshotId>,
    /// Not open; their chunks are in the disk's cache.
    #[serde(default)]
    pub cached: Vec<SnapshotId>,
}

/// How many snapshots of a kind a worker tells of.
pub const KEPT_MAX: usize = 512;

/// What a worker's host offers beside memory, and where it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The host's name.
    #[serde(default)]
    pub host: String,
    /// Its processors.
    #[serde(default)]
    pub cpus: u32,
    /// What they have.
    #[serde(default, skip_serializing_if = "InstructionSets::is_empty")]
    pub instruction_sets: InstructionSets,
    /// How many instances it takes; 0 for as many as fit its memory.
    #[serde(default)]
    pub instances_max: u32,
    /// Where it stands; workers of one zone fail together.
    #[serde(default)]
    pub zone: String,
    /// What its operator says of it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Whether a worker takes part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It takes what it is given.
    #[default]
    Serving,
    /// It was told to stop: it finishes what it serves, and takes nothing new.
    Leaving,
    /// It has stopped; this is its last report.
    Left,
}

/// A snapshot in the store that no retry brings back: a part of it is gone, or is not what its digest says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The function it is of.
    pub function: FunctionName,
    /// The version it is of.
    pub version: VersionNumber,
    /// What is wrong with it.
    pub why: String,
}

/// What a worker makes, uses and refuses of snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// What it makes them with; `None` of a build that renews none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub makes: Option<MadeWith>,
    /// Those that instances of it began as.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_use: Vec<SnapshotId>,
    /// Those whose images it refused since its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedSnapshot>,
}

/// A snapshot whose images a worker refused: its version is booted there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The function it is of.
    pub function: FunctionName,
    /// The version it is of.
    pub version: VersionNumber,
    /// Which image and field.
    pub why: String,
}

/// The scheduler's answer to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// Instances the scheduler does not know or want; the worker stops them.
    pub stop: Vec<InstanceId>,
    /// Snapshots that the worker told of and that nothing new begins as.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forget: Vec<SnapshotId>,
    /// Which revision of what the worker keeps is known; 0 for none.
    #[serde(default)]
    pub kept_revision: u64,
}

/// The name, beside those of runtimes, of what installs dependencies: it is laid under a runtime's root filesystem.
pub const BUILD_TOOLS: &str = "build";

/// Which archive is a runtime's root filesystem now: the content of `runtimes/{base}.json` in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeAlias {
    /// The archive.
    pub layer: LayerRef,
    /// What is in it: package to version.
    #[serde(default)]
    pub packages: BTreeMap<String, String>,
}
