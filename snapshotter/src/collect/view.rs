//! What is needed according to the store, read in the only safe order: publishers' notes, then manifests and runtimes,
//! then the caller's rule. Publishers create and remove them in that order too.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::error::Error;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use rekindle_store::ObjectInfo;
use rekindle_wire::SnapshotId;
use rekindle_wire::internal::{RuntimeAlias, RuntimeSnapshot};

use super::names;
use super::needs::{NeedsCache, NeedsLookup, SnapshotOwner, learn};
use super::objects::Objects;
use super::{CALLS_AT_ONCE, CollectError};
use crate::digest::Digest;
use crate::keys;

/// A snapshot that exists.
#[derive(Debug, Clone)]
pub struct FoundSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// What it belongs to. `None` if it is damaged.
    pub of: Option<SnapshotOwner>,
    /// Whether it is named as the snapshot that functions start from.
    pub is_named: bool,
}

/// What is needed according to the caller.
#[derive(Debug, Clone, Default)]
pub struct RequiredObjects {
    /// The found snapshots that must be kept.
    pub snapshots: HashSet<SnapshotId>,
    /// Layers of versions, with or without snapshots.
    pub layers: HashSet<Digest>,
    /// Names of the owners of deploys in progress ([`super::Owner::deploy`]).
    pub deploys: HashSet<String>,
}

/// The caller's knowledge of what is needed.
pub trait Rule: Send + Sync {
    /// Which of these snapshots are needed, and what else is. Called after they were listed: a deploy whose snapshot is
    /// among them is in progress, or its outcome is recorded.
    fn wanted<'a>(
        &'a self,
        found: &'a [FoundSnapshot],
    ) -> BoxFuture<'a, Result<RequiredObjects, Box<dyn Error + Send + Sync>>>;
}

#[derive(Debug, Default)]
pub(super) struct PublisherNotes {
    pub(super) keys: Vec<String>,
    /// Time of the newest note's last write. `None` if the store does not report it.
    pub(super) newest_unix_ms: Option<i64>,
}

/// The store at a point in time.
pub(super) struct View {
    pub(super) notes: BTreeMap<String, PublisherNotes>,
    /// All objects below `snapshots/`.
    pub(super) objects: Vec<ObjectInfo>,
    pub(super) found: Vec<(SnapshotId, NeedsLookup)>,
    pub(super) wanted: RequiredObjects,
    /// Names of runtimes' snapshots, with the snapshots' ids.
    pub(super) named: Vec<(String, SnapshotId)>,
    /// Keys needed by notes, runtimes and the caller.
    needed: HashSet<String>,
}

impl View {
    pub(super) async fn of<O: Objects>(
        objects: &O,
        seen: &mut NeedsCache,
        rule: &dyn Rule,
    ) -> Result<Self, CollectError> {
        let mut needed = HashSet::new();
        let notes = read_notes(objects, &mut needed).await?;
        let listed = objects.list(keys::SNAPSHOTS).await?;
        let found = read_manifests(objects, seen, &listed).await?;
        read_runtimes(objects, &mut needed).await?;
        let named = read_named(objects).await?;
        let asked: Vec<FoundSnapshot> = found
            .iter()
            .map(|(id, learnt)| FoundSnapshot {
                id: id.clone(),
                of: match learnt {
                    NeedsLookup::Needs(needs) => Some(needs.of.clone()),
                    NeedsLookup::Damaged | NeedsLookup::Newer => None,
                },
                is_named: named.iter().any(|(_, named)| named == id),
            })
            .collect();
        let wanted = rule.wanted(&asked).await.map_err(CollectError::Rule)?;
        needed.extend(wanted.layers.iter().map(keys::layer));
        Ok(Self {
            notes,
            objects: listed,
            found,
            wanted,
            named,
            needed,
        })
    }

    /// Snapshots that exist and are not wanted. Those of a newer build are left to it.
    pub(super) fn unwanted(&self) -> BTreeSet<SnapshotId> {
        let unwanted = self
            .found
            .iter()
            .filter(|(id, learnt)| !self.wanted.snapshots.contains(id) && !matches!(learnt, NeedsLookup::Newer));
        unwanted.map(|(id, _)| id.clone()).collect()
    }

    /// Keys of all needed chunks and layers, not counting the snapshots in `but`. If the needs of some snapshots are
    /// unknown, returns those snapshots as the error.
    pub(super) fn needed(&self, but: &BTreeSet<SnapshotId>) -> Result<HashSet<&str>, Vec<SnapshotId>> {
        let mut needed: HashSet<&str> = self.needed.iter().map(String::as_str).collect();
        let mut unknown = Vec::new();
        for (id, learnt) in self.found.iter().filter(|(id, _)| !but.contains(id)) {
            match learnt {
                NeedsLookup::Needs(needs) => needed.extend(needs.keys.iter().map(String::as_str)),
                NeedsLookup::Damaged | NeedsLookup::Newer => unknown.push(id.clone()),
            }
        }
        if unknown.is_empty() { Ok(needed) } else { Err(unknown) }
    }

    /// Whether the snapshot exists or may be about to.
    pub(super) fn may_exist(&self, id: &SnapshotId) -> bool {
        self.notes.contains_key(id.as_str()) || self.found.iter().any(|(found, _)| found == id)
    }
}

async fn read_notes<O: Objects>(
    objects: &O,
    needed: &mut HashSet<String>,
) -> Result<BTreeMap<String, PublisherNotes>, CollectError> {
    let listed = objects.list(keys::PUBLISHING).await?;
    let read = stream::iter(listed).map(async |object: ObjectInfo| {
        let bytes = match objects.get(&object.key).await {
            Ok(bytes) => bytes,
            // Finished between the two calls: what it relied on has a manifest, which is read after this.
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let names = names::parse(&bytes).map_err(|cause| CollectError::Names {
            key: object.key.clone(),
            cause,
        })?;
        Ok::<_, CollectError>(Some((object, names)))
    });
    let mut read = read.buffer_unordered(CALLS_AT_ONCE);
    let mut notes: BTreeMap<String, PublisherNotes> = BTreeMap::new();
    while let Some(note) = read.try_next().await? {
        let Some((object, names)) = note else { continue };
        needed.extend(names);
        if let Some(owner) = keys::in_publishing(&object.key) {
            let notes = notes.entry(owner.to_owned()).or_default();
            notes.newest_unix_ms = notes.newest_unix_ms.max(object.modified_unix_ms);
            notes.keys.push(object.key);
        }
    }
    Ok(notes)
}

async fn read_manifests<O: Objects>(
    objects: &O,
    seen: &mut NeedsCache,
    listed: &[ObjectInfo],
) -> Result<Vec<(SnapshotId, NeedsLookup)>, CollectError> {
    let mut there = BTreeSet::new();
    let mut bundles = BTreeMap::new();
    for object in listed {
        match keys::in_snapshot(&object.key) {
            Some((id, keys::MANIFEST)) => drop(there.insert(id)),
            Some((id, keys::BUNDLE)) => drop(bundles.insert(id, object.len)),
            _ => {}
        }
    }
    seen.keep(&there);
    let mut found = Vec::with_capacity(there.len());
    let mut new = Vec::new();
    for id in there {
        match seen.get(&id) {
            Some(learnt) => found.push((id, learnt)),
            None => new.push(id),
        }
    }
    let read = stream::iter(new).map(async |id: SnapshotId| {
        let learnt = Box::pin(learn(objects, &id, bundles.get(&id).copied())).await;
        learnt.map(|learnt| (id, learnt))
    });
    let mut read = read.buffer_unordered(CALLS_AT_ONCE);
    while let Some((id, learnt)) = read.try_next().await? {
        if let Some(learnt) = learnt {
            seen.remember(&id, &learnt);
            found.push((id, learnt));
        }
    }
    Ok(found)
}

/// The names of runtimes' snapshots that functions start from. An unreadable one counts as naming none: then another is
/// made.
async fn read_named<O: Objects>(objects: &O) -> Result<Vec<(String, SnapshotId)>, CollectError> {
    let mut named = Vec::new();
    for object in objects.list(keys::RUNTIME_SNAPSHOTS).await? {
        match objects.get(&object.key).await {
            Ok(bytes) => match serde_json::from_slice::<RuntimeSnapshot>(&bytes) {
                Ok(found) => named.push((object.key, found.snapshot)),
                Err(error) => {
                    let error = &error as &dyn Error;
                    tracing::warn!(
                        key = object.key,
                        error,
                        "the name of a runtime's snapshot cannot be read"
                    );
                }
            },
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(named)
}

async fn read_runtimes<O: Objects>(objects: &O, needed: &mut HashSet<String>) -> Result<(), CollectError> {
    for object in objects.list(keys::RUNTIMES).await? {
        let bytes = match objects.get(&object.key).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        let unreadable = |cause: Box<dyn Error + Send + Sync>| CollectError::Runtime {
            key: object.key.clone(),
            cause,
        };
        let alias: RuntimeAlias = serde_json::from_slice(&bytes).map_err(|e| unreadable(e.into()))?;
        let digest: Digest = alias
            .layer
            .digest
            .parse()
            .map_err(|e: crate::digest::ParseDigestError| unreadable(e.into()))?;
        needed.insert(keys::layer(&digest));
    }
    Ok(())
}
