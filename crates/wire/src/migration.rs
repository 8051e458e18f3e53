//! Migration of an instance to another host: the protocol between scheduler and workers.
//!
//! | caller → callee | call | body → response |
//! |---|---|---|
//! | scheduler → target | `PUT /arrivals/{id}/expected` | [`Expected`] → 204: other arrivals are rejected |
//! | scheduler → source | `POST /departures` | [`SourceOrder`] → 204: target prepared, instance continues |
//! | scheduler → source | `POST /departures/{id}/leave` | [`Leave`] → [`Departed`]: the copy runs |
//! | scheduler → source | `DELETE /departures/{id}` | cancelled before it left → 204 |
//! | source → target | `POST /arrivals` | [`TargetOrder`] → 204: a sandbox and the snapshot's template are ready |
//! | source → target | `POST /arrivals/{id}/images` | a bundle → [`Standing`]: the processes are held |
//! | source → target | `POST /arrivals/{id}/go` | → [`TargetState`]: they run and accept requests |
//! | source → target | `GET /arrivals/{id}` | → [`TargetState`] |
//! | source → target | `DELETE /arrivals/{id}` | it must not run → 204, or 409 `conflict` if it does |
//! | target → source | `GET /departures/{id}/pages` | → all written pages, in order |
//! | target → source | `GET /departures/{id}/pages/{page}` | → the block with this page, for a page fault |
//! | target → source | `POST /departures/{id}/done` | every page has arrived → 204; the source releases the rest |
//!
//! If `POST /departures/{id}/leave` fails, the instance continues as before.

use serde::{Deserialize, Serialize};

use crate::api::StartKind;
use crate::ids::{InstanceId, MigrationId, SnapshotId};
use crate::internal::VersionSpec;

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
    pub way: MigrationKind,
}

/// Performs the prepared migration now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// Time limit for requests in flight, in milliseconds.
    pub settle_ms: u64,
}

/// An instance has left the source. Durations are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Departed {
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
}

/// Announces an instance to the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// The id that it will have.
    pub instance: InstanceId,
    /// What it runs, as which user, and within which limits. The target trusts no other worker about that.
    pub spec: VersionSpec,
    /// The source's address, `host:port`.
    pub from: String,
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
pub struct Standing {
    /// Number of written pages that have already arrived.
    pub arrived_pages: u64,
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
