//! What users read and write: requests and responses of `fn` and other clients. [`crate::interface::users`] says which
//! operation takes which.

mod access;
mod audit;
mod canary;
mod event_source;
mod instance;
mod object;
mod quota;
mod release;
mod rule;
mod schedule;
mod secret;
mod source;
mod usage;
mod version;
mod worker;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::function_config::{Base, Runtime};
use crate::ids::{FunctionId, InstanceId, SnapshotId, VersionNumber, WorkerId};
use crate::migration::MigrationPhases;

pub use access::{KEY_LIFE_MAX_S, KEY_NAME_MAX, KeySummary, NamespaceSummary, NewKey, NewKeyRequest, RevokedKey};
pub use audit::{AUDIT_PAGE_MAX, AuditEntry, AuditPage, AuditPlace};
pub use canary::{Canary, CanaryCheck, CanaryState, CanarySteps, Compared, ParseStepsError, STEP_MAX_S, STEP_S};
pub use event_source::{SourceInfo, SourceProgress, SourceReader, SourceReport, SourceReports, SourceState};
pub use instance::{InstanceInfo, InstanceState, StartKind};
pub use object::{Fate, InstanceObjects, KernelObject};
pub use quota::{Quota, QuotaExceeded, QuotaKind, QuotaStatus, QuotaUse};
pub use release::{
    Alias, AliasTarget, AliasTargets, Rollback, RollbackRequest, TARGETS_MAX, VersionSummary, WEIGHT_MAX,
};
pub use rule::{AccessRule, AuthStatus, Login, NewRuleRequest, RemovedRule, Whoami};
pub use schedule::{ScheduleInfo, ScheduledRun};
pub use secret::SecretSummary;
pub use source::{DeployCheck, Reused, SourceFile, SourceKind, VersionFiles};
pub use usage::{GbMs, USAGE_DAYS_MAX, USAGE_LINES_MAX, UsageBy, UsageLine};
pub use version::{
    PhaseTime, Randomness, Rehearsal, Repeating, RestoredBy, SnapshotSummary, VersionInfo, VersionState,
};
pub use worker::{WorkerInfo, WorkerState};

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
    pub runtime: Runtime,
    /// Its root filesystem, which says the version of its interpreter. `None` from an earlier version of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// Its container image, as fn.toml names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
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
    /// Its last canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
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
#[serde(from = "ReadMigration")]
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
    pub phases: MigrationPhases,
    /// The same under the name that it had in the release before. The next one leaves it out.
    pub departed: MigrationPhases,
}

/// A [`Migration`] as this release and the one before send it.
#[derive(Deserialize)]
struct ReadMigration {
    instance: InstanceId,
    from: WorkerId,
    to: WorkerId,
    took_ms: f64,
    phases: Option<MigrationPhases>,
    #[serde(default)]
    departed: MigrationPhases,
}

impl From<ReadMigration> for Migration {
    fn from(read: ReadMigration) -> Self {
        let phases = read.phases.unwrap_or(read.departed);
        Self {
            instance: read.instance,
            from: read.from,
            to: read.to,
            took_ms: read.took_ms,
            departed: phases.clone(),
            phases,
        }
    }
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
    /// Who wrote it.
    pub stream: LogStream,
    /// The line without its newline, at most 16 KiB.
    pub text: String,
}

/// Where a line of a log comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    /// The function's standard output.
    Stdout,
    /// Its standard error.
    Stderr,
    /// The platform, about the function.
    Platform,
}

impl LogStream {
    /// Returns its name, as messages have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Platform => "platform",
        }
    }
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
