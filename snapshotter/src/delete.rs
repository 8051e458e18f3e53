//! Removing a snapshot. Its chunks stay, as other snapshots may refer to them.

use rekindle_wire::SnapshotId;

use crate::keys;
use crate::store::{Store, StoreError};

/// Remove a snapshot: its manifest first, so that from then on it does not exist, then everything else of it. It is no
/// error if there is none; after an error part of it may be left, and the call may be repeated.
pub async fn delete(store: &Store, id: &SnapshotId) -> Result<(), StoreError> {
    store.delete(&keys::manifest(id)).await?;
    for object in store.list(&keys::snapshot_prefix(id)).await? {
        store.delete(&object.key).await?;
    }
    Ok(())
}
