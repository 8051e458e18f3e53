//! Messages between gateway, scheduler and worker. [`crate::interface`] says which operation takes which.

mod heartbeat;
mod keys;
mod quotas;
mod routes;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{SnapshotSummary, StartKind, VersionState};
use crate::error::ApiError;
use crate::function_config::FunctionConfig;
use crate::ids::{FunctionId, GatewayId, InstanceId, SnapshotId, VersionNumber};
use crate::processor::InstructionSets;
use crate::secret::Secret;
use crate::snapshot_key::SnapshotKey;

pub use heartbeat::{
    DamagedSnapshot, Heartbeat, HeartbeatResponse, HostOffer, MemoryPressure, Presence, RESTORABLE_MAX,
    RefusedSnapshot, RestorableSnapshots, SnapshotReport,
};
pub use keys::{KeysResponse, KnownKey, KnownRule};
pub use quotas::{GatewayQuota, GatewayQuotas, ReachedEgress, UsageCounts, UsageEntry, UsageReport};
pub use routes::{FunctionRoutes, RoutesResponse, StreamingVersions};

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
    /// Its function config. Earlier releases of the platform know the field as `manifest`.
    #[serde(rename = "manifest", alias = "config")]
    pub config: FunctionConfig,
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
    #[serde(default = "crate::function_config::boot_timeout_ms")]
    pub boot_timeout_ms: u64,
    /// How long the gateway may keep using the slots, in milliseconds from now. Asking again renews the lease.
    pub lease_ms: u64,
    /// The lease's number, see [`crate::lease`]. 0 from a scheduler that does not number leases.
    #[serde(default)]
    pub lease_number: u64,
    /// Whether an invocation that may have reached the function may be sent again elsewhere.
    #[serde(default)]
    pub idempotent: bool,
    /// Whether each invocation waits for another copy.
    #[serde(default)]
    pub fresh: bool,
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
    /// Invocations that may still be in flight on it although nobody waits for them. A later heartbeat of the
    /// worker gives their actual number.
    #[serde(default)]
    pub busy: u32,
}

/// What a gateway must do with its leases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseResponse {
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
    /// The secrets that its config names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The key of its namespace, if snapshots there are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_key: Option<SnapshotKey>,
    /// What the worker shows of the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<OrderTicket>,
}

/// Shows that a scheduler has ordered an instance of a worker: a code of the worker, the instance and its version that
/// only schedulers can write. Hexadecimal digits. A worker's word alone would be no proof that it may have the
/// function's secrets and requests.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OrderTicket(pub String);

impl fmt::Debug for OrderTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrderTicket")
    }
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
    /// Its function config. Earlier releases of the platform know the field as `manifest`.
    #[serde(rename = "manifest", alias = "config")]
    pub config: FunctionConfig,
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
    /// The secrets that its config names. The instance whose memory becomes the snapshot gets none of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The key of its namespace, if snapshots there are encrypted: its own is encrypted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_key: Option<SnapshotKey>,
    /// What the worker shows of the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<OrderTicket>,
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
        /// Why there is no snapshot although its function config requests one.
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
