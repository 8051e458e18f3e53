//! Lists every snapshot in the store by its manifest.

use futures::stream::{self, StreamExt as _};
use rekindle_store::{Store, StoreError};
use rekindle_wire::SnapshotId;
use serde::Serialize;

use crate::keys;
use crate::manifest::{Origin, Totals};
use crate::snapshot::{OpenError, read_manifest};

/// Concurrent reads of manifests.
const CALLS_AT_ONCE: usize = 16;

/// A snapshot in a listing.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// Its id.
    pub id: SnapshotId,
    /// What it was taken of.
    pub origin: Origin,
    /// Time of publication, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// Stored size of images, page maps and eager pages together.
    pub bundle_bytes: u64,
    /// Sizes of its memory.
    pub totals: Totals,
}

/// All snapshots.
#[derive(Debug, Default)]
pub struct Listing {
    /// Existing snapshots, the newest last.
    pub snapshots: Vec<Listed>,
    /// Encrypted snapshots, of which nothing else can be read here.
    pub sealed: Vec<SnapshotId>,
    /// Errors of snapshots that could not be read.
    pub unreadable: Vec<OpenError>,
}

/// Lists the snapshots in the store, with one call per thousand and one per manifest.
pub async fn list(store: &Store) -> Result<Listing, StoreError> {
    let folders = store.list_folders(keys::SNAPSHOTS).await?;
    let mut ids: Vec<SnapshotId> = folders.iter().filter_map(|name| name.parse().ok()).collect();
    ids.sort_unstable();
    let mut manifests = stream::iter(ids)
        .map(|id| Box::pin(async move { read_manifest(store, &id).await }))
        .buffered(CALLS_AT_ONCE);
    let mut listing = Listing::default();
    while let Some(read) = manifests.next().await {
        match read {
            Ok(manifest) => listing.snapshots.push(Listed {
                id: manifest.id,
                origin: manifest.origin,
                created_unix_s: manifest.created_unix_s,
                bundle_bytes: manifest.bundle_bytes,
                totals: manifest.totals,
            }),
            // Left by a publish that never finished.
            Err(error) if error.is_not_found() => {}
            Err(OpenError::Sealed { id, .. }) => listing.sealed.push(id),
            Err(error) => listing.unreadable.push(error),
        }
    }
    Ok(listing)
}
