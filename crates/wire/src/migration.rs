//! Messages about migrating an instance to another host. [`crate::interface::worker`] says in which order they are
//! sent.

use serde::{Deserialize, Serialize};

use crate::api::{RestoredBy, StartKind};
use crate::ids::{InstanceId, MigrationId, SnapshotId};
use crate::internal::{OrderTicket, VersionSpec};
use crate::secret::Secret;
use crate::snapshot_key::SnapshotKey;

/// What happens to the original.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationKind {
    /// It ends: its copy becomes the instance, under the same id.
    Move,
    /// It continues beside its copy, which has this id.
    Clone(InstanceId),
}

/// Prepares the migration of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceOrder {
    /// Id of the migration.
    pub id: MigrationId,
    /// The instance.
    pub instance: InstanceId,
    /// The target's address, `host:port`.
    pub to: String,
    /// Whether the original ends.
    #[serde(rename = "way", alias = "kind")]
    pub kind: MigrationKind,
}

/// Performs the prepared migration now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleLimit {
    /// Time limit for requests in flight, in milliseconds.
    pub settle_ms: u64,
}

/// An instance has left the source. Durations are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MigrationPhases {
    /// Until the requests in flight had ended.
    pub settle_ms: f64,
    /// Until its processes were frozen and described.
    pub checkpoint_ms: f64,
    /// Until the description was at the target and the processes were restored there.
    pub restore_ms: f64,
    /// Until they ran.
    pub resume_ms: f64,
    /// How long no request could be in flight.
    pub pause_ms: f64,
    /// Number of pages that it had written since its restore, which are transferred.
    pub written_pages: u64,
    /// Bytes of everything else that is transferred.
    pub image_bytes: u64,
    /// What restored it at the target. `None` from workers of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_by: Option<RestoredBy>,
}

/// Announces an instance to the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpectedInstance {
    /// The id that it will have.
    pub instance: InstanceId,
    /// What it runs, as which user, and within which limits. The target trusts no other worker about that.
    pub spec: VersionSpec,
    /// The source's address, `host:port`.
    pub from: String,
    /// The secrets that its config names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The key of its namespace, if snapshots there are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_key: Option<SnapshotKey>,
    /// What the target shows of the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<OrderTicket>,
}

/// Prepares the target for an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetOrder {
    /// Id of the migration.
    pub id: MigrationId,
    /// The id that it will have.
    pub instance: InstanceId,
    /// Whether it will be a second copy, which must not share identity and randomness with the first.
    pub clone: bool,
    /// How the original was started.
    pub started: StartKind,
    /// What it runs.
    pub spec: VersionSpec,
    /// Address that serves its pages, `host:port`.
    pub from: String,
    /// The snapshot whose template its memory is mapped from, if any.
    pub base: Option<SnapshotId>,
    /// Digest of that template's layout, which must equal the target's.
    pub layout: String,
}

/// A copy has been restored and is held before its first instruction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldCopy {
    /// Number of written pages that have already arrived.
    pub arrived_pages: u64,
    /// What restored it. `None` from workers of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_by: Option<RestoredBy>,
}

/// Progress of a migration target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// Its processes do not run yet, and will not until they are released.
    Waiting,
    /// They run.
    Running,
    /// They never ran, and never will.
    Failed,
}
