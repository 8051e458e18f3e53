//! What the store says is needed, read in the one order that is safe: publishers' notes, then manifests and runtimes, then
//! what the caller knows. Whoever publishes makes them in that order and removes them in that order too.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::error::Error;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use rekindle_wire::SnapshotId;
use rekindle_wire::internal::{RuntimeAlias, RuntimeSnapshot};

use super::names;
use super::needs::{Learnt, Of, Seen, learn};
use super::objects::Objects;
use super::{CALLS_AT_ONCE, CollectError};
use crate::digest::Digest;
use crate::keys;
use crate::store::ObjectInfo;

/// A snapshot that exists.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its id.
    pub id: SnapshotId,
    /// Whose it is; `None` if it is damaged.
    pub of: Option<Of>,
    /// Whether it is named as the one that functions begin as.
    pub is_named: bool,
}

/// What the caller says is needed.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Of the snapshots that were found, those to keep.
    pub snapshots: HashSet<SnapshotId>,
    /// Layers of versions, whether they have snapshots or not.
    pub layers: HashSet<Digest>,
    /// Names of the owners of deploys that are under way ([`super::Owner::deploy`]).
    pub deploys: HashSet<String>,
}

/// What the caller knows about what is needed.
pub trait Rule: Send + Sync {
    /// Which of these snapshots are needed, and what else is. Asked after they were listed: a deploy whose snapshot is among them is
    /// under way, or its outcome is written down.
    fn wanted<'a>(&'a self, found: &'a [Found]) -> BoxFuture<'a, Result<Wanted, Box<dyn Error + Send + Sync>>>;
}

/// The notes of one publisher.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) keys: Vec<String>,
    /// When the newest of them was written; `None` if the store does not say.
    pub(super) newest_unix_ms: Option<i64>,
}

/// The store at a time.
pub(super) struct View {
    pub(super) notes: BTreeMap<String, Notes>,
    /// Everything below `snapshots/`.
    pub(super) objects: Vec<ObjectInfo>,
    pub(super) found: Vec<(SnapshotId, Learnt)>,
    pub(super) wanted: Wanted,
    /// Names of runtimes' snapshots, and which those are.
    pub(super) named: Vec<(String, SnapshotId)>,
    /// What notes, runtimes and the caller need.
    needed: HashSet<String>,
}

impl View {
    pub(super) async fn of<O: Objects>(objects: &O, seen: &mut Seen, rule: &dyn Rule) -> Result<Self, CollectError> {
        let mut needed = HashSet::new();
        let notes = read_notes(objects, &mut needed).await?;
        let listed = objects.list(keys::SNAPSHOTS).await?;
        let found = read_manifests(objects, seen, &listed).await?;
        read_runtimes(objects, &mut needed).await?;
        let named = read_named(objects).await?;
        let asked: Vec<Found> = found
            .iter()
            .map(|(id, learnt)| Found {
                id: id.clone(),
                of: match learnt {
                    Learnt::Needs(needs) => Some(needs.of.clone()),
                    Learnt::Damaged | Learnt::Newer => None,
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

    /// Snapshots that exist and are not wanted. What a newer build wrote is for it to judge.
    pub(super) fn unwanted(&self) -> BTreeSet<SnapshotId> {
        let unwanted = self
            .found
            .iter()
            .filter(|(id, learnt)| !self.wanted.snapshots.contains(id) && !matches!(learnt, Learnt::Newer));
        unwanted.map(|(id, _)| id.clone()).collect()
    }

    /// Keys of all chunks and layers that are needed, not counting the snapshots in `but`; or the snapshots of which that cannot be
    /// told.
    pub(super) fn needed(&self, but: &BTreeSet<SnapshotId>) -> Result<HashSet<&str>, Vec<SnapshotId>> {
        let mut needed: HashSet<&str> = self.needed.iter().map(String::as_str).collect();
        let mut unknown = Vec::new();
        for (id, learnt) in self.found.iter().filter(|(id, _)| !but.contains(id)) {
            match learnt {
                Learnt::Needs(needs) => needed.extend(needs.keys.iter().map(String::as_str)),
                Learnt::Damaged | Learnt::Newer => unknown.push(id.clone()),
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
) -> Result<BTreeMap<String, Notes>, CollectError> {
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
    let mut notes: BTreeMap<String, Notes> = BTreeMap::new();
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
    seen: &mut Seen,
    listed: &[ObjectInfo],
) -> Result<Vec<(SnapshotId, Learnt)>, CollectError> {
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

/// What a runtime's snapshots are named by that functions begin as. One that cannot be read names none: another is made then.
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
