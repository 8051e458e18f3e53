//! Deletes a snapshot. Its chunks stay, because other snapshots may refer to them.

use rekindle_store::{Store, StoreError};
use rekindle_wire::SnapshotId;

use crate::keys;

/// Deletes a snapshot: first its manifest, after which it no longer exists, then everything else. A missing snapshot is
/// not an error. After an error, parts may be left and the call may be repeated.
pub async fn delete(store: &Store, id: &SnapshotId) -> Result<(), StoreError> {
    store.delete(&keys::manifest(id)).await?;
    for object in store.list(&keys::snapshot_prefix(id)).await? {
        store.delete(&object.key).await?;
    }
    Ok(())
}
