//! Collection: removes from the store what nothing refers to, while others publish. Decision 7 describes the protocol
//! and why it is safe. [`Publication`] is the publishers' half of it.
//!
//! ```text
//! list chunks, layers ─► view: notes, manifests, caller's rule ─► remove unwanted snapshots, manifest first
//!   ─► condemn what none of them needs: put collecting/RUN ─► view again
//!   ─► remove what is still unneeded, and remains of snapshots that do not exist
//!   ─► remove notes and lists of the dead ─► remove collecting/RUN
//! ```
//!
//! Interrupted at any point, a collection leaves only a list behind, and the next collection does the rest. Two
//! concurrent collections are harmless too.

#[cfg(test)]
mod model;
mod names;
mod needs;
mod objects;
mod publication;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::{Duration, Instant, SystemTime};

use futures::stream::{self, StreamExt, TryStreamExt};
use rekindle_store::{ObjectInfo, StoreError};
use rekindle_wire::SnapshotId;
use rekindle_wire::api::{Collected, Swept};
use uuid::Uuid;

use crate::keys;
use crate::snapshot::OpenError;

pub use names::NamesError;
pub use needs::{NeedsCache, SnapshotOwner};
pub use objects::Objects;
pub use publication::{Owner, PUBLICATION_LIMIT, Publication, PublicationError, forget};
pub use view::{FoundSnapshot, RequiredObjects, Rule};

use view::View;

/// Age, by the store's own clock, at which a publisher's notes or a collection's list count as those of a dead one.
pub const LIFE: Duration = Duration::from_secs(24 * 3600);
/// Duration after which a collection deletes nothing more. It is far less than [`LIFE`], after which its list is
/// ignored.
const RUN_LIMIT: Duration = Duration::from_secs(3600);
/// Maximum number of objects condemned by one collection. Publishers read the list, and the next collection takes the
/// rest.
pub const CONDEMNED_MAX: usize = 50_000;
/// Concurrent reads or removals of objects.
const CALLS_AT_ONCE: usize = 8;

/// Why a collection ended early. Whatever it started to delete is left to the next one.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The store failed.
    #[error("the store failed in a collection")]
    Store(#[from] StoreError),
    /// A snapshot could not be read.
    #[error("a snapshot could not be read for a collection")]
    Snapshot(#[from] OpenError),
    /// The caller could not determine what is needed.
    #[error("what is needed could not be told")]
    Rule(#[source] Box<dyn Error + Send + Sync>),
    /// A list cannot be parsed.
    #[error("{key} cannot be read, so it is not known what a publisher relies on")]
    Names {
        /// The list.
        key: String,
        /// The parser's error.
        #[source]
        cause: NamesError,
    },
    /// A runtime's alias cannot be parsed.
    #[error("{key} cannot be read, so it is not known which layer it needs: import the runtimes again")]
    Runtime {
        /// The alias.
        key: String,
        /// The parser's error.
        #[source]
        cause: Box<dyn Error + Send + Sync>,
    },
    /// The collection took too long.
    #[error("it took more than {RUN_LIMIT:?} and was given up: look after the store's speed")]
    TooLong,
}

/// Removes what nobody needs, or only counts it with `dry_run`.
pub async fn collect<O: Objects>(
    objects: &O,
    seen: &mut NeedsCache,
    rule: &dyn Rule,
    dry_run: bool,
) -> Result<Collected, CollectError> {
    let mut run = Run {
        objects,
        list: keys::condemned(&format!("r-{}", Uuid::now_v7().simple())),
        listed: false,
        deleting: false,
        begun: (Instant::now(), SystemTime::now()),
        dry_run,
    };
    let collected = run.all(seen, rule).await;
    if collected.is_err() && run.listed && !run.deleting {
        // The list was not acted on, so nobody needs to heed it. If this removal fails too, the list expires.
        drop(objects.delete_once(&run.list).await);
    }
    collected
}

struct Run<'a, O> {
    objects: &'a O,
    list: String,
    listed: bool,
    /// Whether a condemned object may have been deleted.
    deleting: bool,
    begun: (Instant, SystemTime),
    dry_run: bool,
}

impl<O: Objects> Run<'_, O> {
    async fn all(&mut self, seen: &mut NeedsCache, rule: &dyn Rule) -> Result<Collected, CollectError> {
        let mut collected = Collected {
            dry_run: self.dry_run,
            ..Collected::default()
        };
        let mut stored = self.objects.list(keys::CHUNKS).await?;
        stored.extend(self.objects.list(keys::LAYERS).await?);
        let before = View::of(self.objects, seen, rule).await?;

        let unwanted = before.unwanted();
        collected.snapshots = self.remove_snapshots(&before, &unwanted).await?;

        let total = swept(&stored);
        let mut condemned = match before.needed(&unwanted) {
            Ok(needed) => stored
                .into_iter()
                .filter(|o| !needed.contains(o.key.as_str()))
                .collect(),
            Err(_) => Vec::new(),
        };
        collected.more = condemned.len() > CONDEMNED_MAX;
        condemned.truncate(CONDEMNED_MAX);
        let others = self.objects.list(keys::CONDEMNED).await?;
        // Even an empty list reveals the store's time.
        let clock = !(before.notes.is_empty() && others.is_empty());
        if !self.dry_run && (clock || !condemned.is_empty()) {
            let names = condemned.iter().map(|o| &o.key);
            let list = names::encode(names).map_err(|cause| CollectError::Names {
                key: self.list.clone(),
                cause,
            })?;
            self.listed = true;
            self.objects.put(&self.list, list).await?;
        }

        // The order matters: a publisher whose note is not seen here began after the list was put, and heeds the list.
        let after = View::of(self.objects, seen, rule).await?;
        let but = if self.dry_run { unwanted } else { BTreeSet::new() };
        match after.needed(&but) {
            Ok(needed) => condemned.retain(|o| !needed.contains(o.key.as_str())),
            Err(unknown) => {
                condemned.clear();
                collected.held_by = unknown;
            }
        }
        let remains: Vec<ObjectInfo> = remains(&before, &after).cloned().collect();
        collected.remains = self.remove(remains).await?;
        let (layers, chunks) = condemned.into_iter().partition(|o| o.key.starts_with(keys::LAYERS));
        self.deleting = true;
        collected.chunks = self.remove(chunks).await?;
        collected.layers = self.remove(layers).await?;
        let gone = [collected.chunks, collected.layers];
        collected.left = Swept {
            objects: total.objects - gone.iter().map(|s| s.objects).sum::<u64>(),
            bytes: total.bytes - gone.iter().map(|s| s.bytes).sum::<u64>(),
        };
        self.forget_names(&after).await?;
        if self.listed {
            self.remove_dead(&after).await?;
            self.objects.delete_once(&self.list).await?;
        }
        Ok(collected)
    }

    /// Removes whole snapshots, each manifest first: from then on the snapshot does not exist.
    async fn remove_snapshots(&self, view: &View, ids: &BTreeSet<SnapshotId>) -> Result<Swept, CollectError> {
        let mut parts: BTreeMap<SnapshotId, Vec<ObjectInfo>> = BTreeMap::new();
        for object in &view.objects {
            if let Some((id, _)) = keys::in_snapshot(&object.key).filter(|(id, _)| ids.contains(id)) {
                parts.entry(id).or_default().push(object.clone());
            }
        }
        let mut all = Swept::default();
        for (id, parts) in parts {
            if !self.dry_run {
                self.in_time()?;
                self.objects.delete_once(&keys::manifest(&id)).await?;
                tracing::info!(snapshot = %id, "a snapshot that nobody wants is removed");
            }
            all.objects += 1;
            all.bytes += self.remove(parts).await?.bytes;
        }
        Ok(all)
    }

    /// Removes objects. Every request has a response before this returns. After an error, some objects may not have
    /// been removed.
    async fn remove(&self, objects: Vec<ObjectInfo>) -> Result<Swept, CollectError> {
        let all = swept(&objects);
        if self.dry_run {
            return Ok(all);
        }
        let removals = stream::iter(objects).map(async |object: ObjectInfo| {
            self.in_time()?;
            Ok::<_, CollectError>(self.objects.delete_once(&object.key).await?)
        });
        removals.buffer_unordered(CALLS_AT_ONCE).try_collect::<()>().await?;
        Ok(all)
    }

    /// Removes the lists of dead collections and the notes of dead publishers. The objects named in such notes were
    /// kept this time. So a publisher that is still alive has until the next collection to find its notes gone.
    async fn remove_dead(&self, view: &View) -> Result<(), CollectError> {
        let lists = self.objects.list(keys::CONDEMNED).await?;
        let own = lists.iter().find(|l| l.key == self.list);
        // The time by the store's clock. Without it, nothing counts as dead.
        let Some(now) = own.and_then(|l| l.modified_unix_ms) else {
            return Ok(());
        };
        let life = i64::try_from(LIFE.as_millis()).unwrap_or(i64::MAX);
        let expired = |modified: Option<i64>| modified.is_some_and(|m| now.saturating_sub(m) > life);
        for list in lists.iter().filter(|l| expired(l.modified_unix_ms)) {
            tracing::warn!(list = list.key, "the list of a collection that was cut off has expired");
            self.objects.delete_once(&list.key).await?;
        }
        for (owner, notes) in &view.notes {
            let over = publication::is_deploy(owner) && !view.wanted.deploys.contains(owner);
            if over || expired(notes.newest_unix_ms) {
                tracing::warn!(owner, "the notes of a publish that was cut off are removed");
                for key in &notes.keys {
                    self.objects.delete_once(key).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes the names of runtimes' snapshots that do not exist. If a name has been changed to another snapshot
    /// since, that name goes too and the next deploy makes its own: nothing depends on it.
    async fn forget_names(&self, view: &View) -> Result<(), CollectError> {
        let gone = view.named.iter().filter(|(_, id)| !view.may_exist(id));
        for (key, _) in gone.filter(|_| !self.dry_run) {
            self.objects.delete_once(key).await?;
        }
        Ok(())
    }

    fn in_time(&self) -> Result<(), CollectError> {
        let (instant, time) = self.begun;
        // The first clock stops while the machine sleeps. The second one may be set back.
        let taken = instant.elapsed().max(time.elapsed().unwrap_or_default());
        if taken < RUN_LIMIT {
            Ok(())
        } else {
            Err(CollectError::TooLong)
        }
    }
}

/// The remains of snapshots that do not exist and are not being published: listed before, and still without manifest or
/// publisher afterwards. An id is used once, so it never comes back.
fn remains<'a>(before: &'a View, after: &'a View) -> impl Iterator<Item = &'a ObjectInfo> {
    let existed: BTreeSet<&SnapshotId> = before.found.iter().map(|(id, _)| id).collect();
    before.objects.iter().filter(move |object| {
        keys::in_snapshot(&object.key).is_some_and(|(id, _)| !existed.contains(&id) && !after.may_exist(&id))
    })
}

fn swept(objects: &[ObjectInfo]) -> Swept {
    Swept {
        objects: objects.len() as u64,
        bytes: objects.iter().map(|o| o.len).sum(),
    }
}

/// Keys of everything that a snapshot needs.
#[cfg(test)]
pub(crate) async fn needs_of<O: Objects>(objects: &O, id: &SnapshotId) -> BTreeSet<String> {
    let bundle = objects.list(&crate::keys::bundle(id)).await.unwrap()[0].len;
    match needs::learn(objects, id, Some(bundle)).await.unwrap() {
        Some(needs::NeedsLookup::Needs(needs)) => needs.keys.clone(),
        other => panic!("{other:?}"),
    }
}
