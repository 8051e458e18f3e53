//! The last steps: puts the objects that belong to one snapshot only, its manifest last, or removes them again.

use bytes::Bytes;
use rekindle_store::{Outcome, Store, StoreError};

use super::ExtraFile;
use crate::keys;
use crate::manifest::{ExtraPlace, Manifest};

/// Puts everything except the chunks and the manifest. Returns [`Outcome::AlreadyPresent`] if another snapshot has the
/// id.
pub(super) async fn put_parts(
    store: &Store,
    files: &[ExtraFile],
    manifest: &Manifest,
    bundle: Bytes,
) -> Result<Outcome, StoreError> {
    let id = &manifest.id;
    // An id is used once. Whoever finds a foreign bundle under it must leave it alone.
    if store.put_if_absent(&keys::bundle(id), bundle.clone()).await? == Outcome::AlreadyPresent
        && store.get(&keys::bundle(id)).await? != bundle
    {
        return Ok(Outcome::AlreadyPresent);
    }
    for entry in &manifest.extra {
        let file = files.iter().find(|f| f.name == entry.name);
        if let (ExtraPlace::Object { .. }, Some(file)) = (&entry.place, file) {
            let key = keys::extra(id, &entry.name);
            // The object is ours if the response to the first attempt was lost.
            if store.put_file_if_absent(&key, &file.path).await? == Outcome::AlreadyPresent
                && !store.has_file(&key, &file.path).await?
            {
                return Ok(Outcome::AlreadyPresent);
            }
        }
    }
    Ok(Outcome::Created)
}

/// Puts the manifest, which makes the snapshot exist.
pub(super) async fn put_manifest(store: &Store, manifest: &Manifest, encoded: &[u8]) -> Result<Outcome, StoreError> {
    let key = keys::manifest(&manifest.id);
    match store.put_if_absent(&key, Bytes::copy_from_slice(encoded)).await? {
        // The manifest is ours if the response to the first attempt was lost.
        Outcome::AlreadyPresent if store.get(&key).await? == encoded => Ok(Outcome::Created),
        outcome => Ok(outcome),
    }
}

/// Removes the objects of a snapshot whose publication failed. This includes the manifest, which may have arrived
/// although the store did not confirm it.
pub(super) async fn clear(store: &Store, manifest: &Manifest) {
    let id = &manifest.id;
    let extra = manifest.extra.iter().map(|e| keys::extra(id, &e.name));
    for key in [keys::manifest(id), keys::bundle(id)].into_iter().chain(extra) {
        if let Err(error) = store.delete(&key).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(key, error, "object of a failed snapshot stays in the store");
            return;
        }
    }
}
