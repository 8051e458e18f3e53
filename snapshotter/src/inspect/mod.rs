//! A snapshot in numbers, for people.

mod listing;

pub use listing::{Listed, Listing, list};

use std::collections::HashSet;

use rekindle_wire::SnapshotId;
use rekindle_wire::api::SnapshotSummary;
use serde::Serialize;

use crate::keys;
use crate::manifest::Origin;
use crate::snapshot::{OpenError, Snapshot};
use crate::store::Store;

/// What a snapshot is of, and how large its parts are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Its sizes as in the admin API.
    pub summary: SnapshotSummary,
    /// What it was made of.
    pub origin: Origin,
    /// When it was published, seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// CRIU's version.
    pub criu: String,
    /// The kernel it was made on.
    pub kernel: String,
    /// Processes in it.
    pub processes: usize,
    /// Regions, those that are all zero included.
    pub regions: usize,
    /// Chunks its regions lie in.
    pub chunks: usize,
    /// Size of images, page maps and eager pages together, as stored.
    pub bundle_bytes: u64,
    /// Memory that must be there before a restore begins, bytes.
    pub eager_bytes: u64,
    /// Size of the working set as stored, once there is one.
    pub working_set_bytes: Option<u64>,
    /// Memory divided by what is stored for it, bundle included.
    pub ratio: f64,
}

/// Look at a snapshot in the store.
pub async fn inspect(store: &Store, id: &SnapshotId) -> Result<Inspection, OpenError> {
    let snapshot = Snapshot::open(store, id).await?;
    let working_set = match store.head(&keys::working_set(id)).await {
        Ok(found) => Some(found.len),
        Err(error) if error.is_not_found() => None,
        Err(cause) => return Err(OpenError::Store { id: id.clone(), cause }),
    };
    let regions = || snapshot.processes.iter().flat_map(|p| p.page_map.regions());
    let chunks: HashSet<_> = regions().filter_map(|r| r.payload).map(|p| p.chunk.id).collect();
    let manifest = &snapshot.manifest;
    let stored = manifest.totals.stored_bytes + manifest.bundle_bytes;
    Ok(Inspection {
        summary: manifest.summary(),
        origin: manifest.origin.clone(),
        created_unix_s: manifest.created_unix_s,
        criu: manifest.criu.clone(),
        kernel: manifest.kernel.clone(),
        processes: snapshot.processes.len(),
        regions: regions().count(),
        chunks: chunks.len(),
        bundle_bytes: manifest.bundle_bytes,
        eager_bytes: manifest.totals.eager_bytes,
        working_set_bytes: working_set,
        ratio: manifest.totals.memory_bytes as f64 / stored.max(1) as f64,
    })
}
