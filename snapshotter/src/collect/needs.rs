//! What a snapshot needs from the store, and what it belongs to.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rekindle_wire::{FunctionId, SnapshotId, VersionNumber};

use super::objects::Objects;
use crate::keys;
use crate::manifest::{FORMAT, ManifestError, Origin};
use crate::pagemap::Region;
use crate::seal::sealed_len;
use crate::snapshot::{OpenError, page_maps_of, read_manifest};

/// What a snapshot belongs to, by its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotOwner {
    /// A version.
    Version(FunctionId, VersionNumber),
    /// A runtime, for the versions of one function or of all functions.
    Runtime(Option<FunctionId>),
    /// Nothing, because it was imported.
    Import,
}

/// What a snapshot needs. It never changes, because the manifest does not.
#[derive(Debug)]
pub(super) struct SnapshotNeeds {
    pub(super) of: SnapshotOwner,
    /// Keys of chunks and layers.
    pub(super) keys: BTreeSet<String>,
}

/// What is known of a snapshot that has a manifest.
#[derive(Debug, Clone)]
pub(super) enum NeedsLookup {
    Needs(Arc<SnapshotNeeds>),
    /// It is damaged: it cannot be restored, and its needs are unknown.
    Damaged,
    /// A newer build wrote it and knows its needs.
    Newer,
}

/// Snapshots read before, so that a collection reads only new ones. Losing this cache only costs time.
#[derive(Debug, Default)]
pub struct NeedsCache(HashMap<SnapshotId, Arc<SnapshotNeeds>>);

impl NeedsCache {
    /// Forgets all snapshots except these.
    pub(super) fn keep(&mut self, there: &BTreeSet<SnapshotId>) {
        self.0.retain(|id, _| there.contains(id));
    }

    pub(super) fn get(&self, id: &SnapshotId) -> Option<NeedsLookup> {
        self.0.get(id).cloned().map(NeedsLookup::Needs)
    }

    pub(super) fn remember(&mut self, id: &SnapshotId, learnt: &NeedsLookup) {
        if let NeedsLookup::Needs(needs) = learnt {
            self.0.insert(id.clone(), Arc::clone(needs));
        }
    }
}

/// Reads a snapshot's manifest and page maps. `bundle_bytes` is the listed size of its bundle. `None` if the snapshot
/// was deleted meanwhile.
pub(super) async fn learn<O: Objects>(
    objects: &O,
    id: &SnapshotId,
    bundle_bytes: Option<u64>,
) -> Result<Option<NeedsLookup>, OpenError> {
    let damaged = |error: OpenError| {
        if !error.is_damage() {
            return Err(error);
        }
        let error = &error as &dyn std::error::Error;
        tracing::warn!(snapshot = %id, error, "a damaged snapshot: what it needs cannot be told");
        Ok(Some(NeedsLookup::Damaged))
    };
    let manifest = match read_manifest(objects, id).await {
        Ok(manifest) => manifest,
        Err(OpenError::NotFound(_)) => return Ok(None),
        Err(OpenError::Manifest {
            cause: ManifestError::Format(format),
            ..
        }) if format > FORMAT => return Ok(Some(NeedsLookup::Newer)),
        Err(error) => return damaged(error),
    };
    let expected = match manifest.sealed_by {
        Some(_) => sealed_len(manifest.bundle_bytes),
        None => manifest.bundle_bytes,
    };
    if bundle_bytes != Some(expected) {
        // A listing of several pages may have passed the bundle's key before it was put, and the manifest's key after.
        let key = keys::bundle(id);
        let listed = objects.list(&key).await;
        let listed = listed.map_err(|cause| OpenError::Store { id: id.clone(), cause })?;
        let found = listed.iter().find(|o| o.key == key).map_or(0, |o| o.len);
        if found != expected {
            let id = id.clone();
            return damaged(OpenError::BundleSize {
                id,
                key,
                found,
                expected,
            });
        }
    }
    let maps = match page_maps_of(objects, &manifest).await {
        Ok(maps) => maps,
        Err(error) => return damaged(error),
    };
    let regions = maps.iter().flat_map(|map| map.regions());
    // Includes the chunks of bases, because the snapshot that they came from may be deleted first.
    let chunks = regions.flat_map(Region::chunks).map(|chunk| keys::chunk(&chunk.id));
    let mut keys: BTreeSet<String> = chunks.collect();
    let of = match manifest.origin {
        Origin::Function {
            function,
            version,
            rootfs,
            layer,
        } => {
            let digests = [rootfs, layer].into_iter().filter_map(|l| l.digest.parse().ok());
            keys.extend(digests.map(|digest| keys::layer(&digest)));
            SnapshotOwner::Version(function, version)
        }
        Origin::Runtime { function, rootfs, .. } => {
            keys.extend(rootfs.digest.parse().ok().map(|digest| keys::layer(&digest)));
            SnapshotOwner::Runtime(function)
        }
        Origin::Import { .. } => SnapshotOwner::Import,
    };
    Ok(Some(NeedsLookup::Needs(Arc::new(SnapshotNeeds { of, keys }))))
}
