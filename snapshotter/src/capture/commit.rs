//! The last steps: the objects that belong to one snapshot alone are put, its manifest last, or removed again.

use bytes::Bytes;

use super::ExtraFile;
use crate::keys;
use crate::manifest::{ExtraPlace, Manifest};
use crate::store::{Outcome, Store, StoreError};

/// Put everything but the chunks and the manifest. [`Outcome::AlreadyPresent`] if another snapshot has the id.
pub(super) async fn put_parts(
    store: &Store,
    files: &[ExtraFile],
    manifest: &Manifest,
    bundle: Bytes,
) -> Result<Outcome, StoreError> {
    let id = &manifest.id;
    // An id is used once; whoever finds its bundle there must leave it alone.
    if store.put_if_absent(&keys::bundle(id), bundle.clone()).await? == Outcome::AlreadyPresent
        && store.get(&keys::bundle(id)).await? != bundle
    {
        return Ok(Outcome::AlreadyPresent);
    }
    for entry in &manifest.extra {
        let file = files.iter().find(|f| f.name == entry.name);
        if let (ExtraPlace::Object { .. }, Some(file)) = (&entry.place, file) {
            let key = keys::extra(id, &entry.name);
            // Ours, if the answer to the first attempt got lost.
            if store.put_file_if_absent(&key, &file.path).await? == Outcome::AlreadyPresent
                && !store.has_file(&key, &file.path).await?
            {
                return Ok(Outcome::AlreadyPresent);
            }
        }
    }
    Ok(Outcome::Created)
}

/// Put the manifest: the snapshot exists.
pub(super) async fn put_manifest(store: &Store, manifest: &Manifest, encoded: &[u8]) -> Result<Outcome, StoreError> {
    let key = keys::manifest(&manifest.id);
    match store.put_if_absent(&key, Bytes::copy_from_slice(encoded)).await? {
        // Ours, if the answer to the first attempt got lost.
        Outcome::AlreadyPresent if store.get(&key).await? == encoded => Ok(Outcome::Created),
        outcome => Ok(outcome),
    }
}

/// Remove what was put for a snapshot that came to nothing: the manifest too, as it may have arrived although the store
/// said nothing.
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
