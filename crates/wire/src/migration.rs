//! Moving an instance to another host: what scheduler and workers say to each other.
//!
//! | caller → callee | call | body → answer |
//! |---|---|---|
//! | scheduler → target | `PUT /arrivals/{id}/expected` | [`Expected`] → 204: nothing else is taken in from another worker |
//! | scheduler → source | `POST /departures` | [`SourceOrder`] → 204: the target is prepared, the instance goes on as before |
//! | scheduler → source | `POST /departures/{id}/leave` | [`Leave`] → [`Departed`]: the copy runs; or an error, and the instance goes on as before |
//! | scheduler → source | `DELETE /departures/{id}` | given up before it left → 204 |
//! | source → target | `POST /arrivals` | [`TargetOrder`] → 204: a sandbox and the snapshot's template are ready |
//! | source → target | `POST /arrivals/{id}/images` | a parcel → [`Standing`]: the processes stand before their first instruction |
//! | source → target | `POST /arrivals/{id}/go` | → [`TargetState`]: they run, and take requests |
//! | source → target | `GET /arrivals/{id}` | → [`TargetState`] |
//! | source → target | `DELETE /arrivals/{id}` | it must not run → 204, or 409 `conflict` when it does |
//! | target → source | `GET /departures/{id}/pages` | → all pages that were written, in order |
//! | target → source | `GET /departures/{id}/pages/{page}` | → the block with this page: somebody waits for it |
//! | target → source | `POST /departures/{id}/done` | every page has arrived → 204; the source lets go of the rest |

use serde::{Deserialize, Serialize};

use crate::api::StartKind;
use crate::ids::{InstanceId, MigrationId, SnapshotId};
use crate::internal::VersionSpec;

/// What becomes of the original.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationKind {
    /// It goes: its copy is the instance from then on, under the same id.
    Move,
    /// It goes on beside its copy, which has this id.
    Clone(InstanceId),
}

/// Get ready to move an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceOrder {
    /// Names the migration.
    pub id: MigrationId,
    /// The instance.
    pub instance: InstanceId,
    /// The target's address, `host:port`.
    pub to: String,
    /// Whether the original goes.
    pub way: MigrationKind,
}

/// Move it now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// How long requests that are in it may take to end, milliseconds.
    pub settle_ms: u64,
}

/// An instance has left. Durations in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Departed {
    /// Until the requests in it had ended.
    pub settle_ms: f64,
    /// Until its processes stood and were described.
    pub checkpoint_ms: f64,
    /// Until the description was at the target and the processes stood there.
    pub restore_ms: f64,
    /// Until they ran.
    pub resume_ms: f64,
    /// No request could be in it for so long.
    pub pause_ms: f64,
    /// Pages it had written since it was restored, which travel.
    pub written_pages: u64,
    /// Bytes of everything else that travels.
    pub image_bytes: u64,
}

/// An instance will come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// The id it will have.
    pub instance: InstanceId,
    /// What it runs, as whom, and within which limits: the target takes no other worker's word for that.
    pub spec: VersionSpec,
    /// The source's address, `host:port`.
    pub from: String,
}

/// Get ready for an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetOrder {
    /// Names the migration.
    pub id: MigrationId,
    /// The id it will have.
    pub instance: InstanceId,
    /// Whether it will be a second copy, which must not share identity and randomness with the first.
    pub clone: bool,
    /// How the original was started.
    pub started: StartKind,
    /// What it runs.
    pub spec: VersionSpec,
    /// Where its pages are to be had, `host:port`.
    pub from: String,
    /// The snapshot whose template its memory is mapped from, if it is.
    pub base: Option<SnapshotId>,
    /// How that template is laid out: a digest, which must be the target's own.
    pub layout: String,
}

/// A copy stands, and waits to be let go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Written pages that have arrived already.
    pub arrived_pages: u64,
}

/// How far a migration target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// Its processes do not run yet, and will not without being let go.
    Waiting,
    /// They run.
    Running,
    /// They never ran, and never will.
    Failed,
}
