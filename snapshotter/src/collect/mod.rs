//! Collection: what nothing refers to is removed from the store, while others publish. Decision 7 has the protocol and why it is
//! safe; [`Publication`] is the publishers' half of it.
//!
//! ```text
//! list chunks, layers ─► look: notes, manifests, what the caller knows ─► remove snapshots nobody wants, manifest first
//!   ─► what is needed by none of them is condemned: put collecting/RUN ─► look again ─► remove what is still needed by none,
//!   and what is left of snapshots that do not exist ─► remove notes and lists of the dead ─► remove collecting/RUN
//! ```
//!
//! Cut off anywhere, it leaves nothing but a list, and the next collection does the rest. Two at a time do no harm either.

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
use rekindle_wire::SnapshotId;
use rekindle_wire::api::{Collected, Swept};
use uuid::Uuid;

use crate::keys;
use crate::snapshot::OpenError;
use crate::store::{ObjectInfo, StoreError};

pub use names::NamesError;
pub use needs::{Of, Seen};
pub use objects::Objects;
pub use publication::{Owner, PUBLICATION_LIMIT, Publication, PublicationError, forget};
pub use view::{Found, Rule, Wanted};

use view::View;

/// A publisher's notes, or a collection's list, older than this by the store's own clock are those of a dead one.
pub const LIFE: Duration = Duration::from_secs(24 * 3600);
/// A collection that has taken this long deletes nothing more: far less than [`LIFE`], after which its list is not heeded.
const RUN_LIMIT: Duration = Duration::from_secs(3600);
/// Most objects condemned by one collection; the next takes the rest. Publishers read the list.
pub const CONDEMNED_MAX: usize = 50_000;
/// Objects read or removed at once.
const CALLS_AT_ONCE: usize = 8;

/// Why a collection ended early. What it had begun to delete is left to the next.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The store failed.
    #[error("the store failed in a collection")]
    Store(#[from] StoreError),
    /// A snapshot could not be read.
    #[error("a snapshot could not be read for a collection")]
    Snapshot(#[from] OpenError),
    /// The caller could not say what is needed.
    #[error("what is needed could not be told")]
    Rule(#[source] Box<dyn Error + Send + Sync>),
    /// A list cannot be read.
    #[error("{key} cannot be read, so it is not known what a publisher relies on")]
    Names {
        /// The list.
        key: String,
        /// Why.
        #[source]
        cause: NamesError,
    },
    /// A runtime's alias cannot be read.
    #[error("{key} cannot be read, so it is not known which layer it needs: import the runtimes again")]
    Runtime {
        /// The alias.
        key: String,
        /// Why.
        #[source]
        cause: Box<dyn Error + Send + Sync>,
    },
    /// It took too long.
    #[error("it took more than {RUN_LIMIT:?} and was given up: look after the store's speed")]
    TooLong,
}

/// Remove what nobody needs, or with `dry_run` only count it.
pub async fn collect<O: Objects>(
    objects: &O,
    seen: &mut Seen,
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
        // Nothing of it was acted on, so nobody need heed it. If this fails too, it expires.
        drop(objects.delete_once(&run.list).await);
    }
    collected
}

struct Run<'a, O> {
    objects: &'a O,
    /// The key of its list.
    list: String,
    listed: bool,
    /// Whether a condemned object may have been deleted.
    deleting: bool,
    begun: (Instant, SystemTime),
    dry_run: bool,
}

impl<O: Objects> Run<'_, O> {
    async fn all(&mut self, seen: &mut Seen, rule: &dyn Rule) -> Result<Collected, CollectError> {
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
        // An empty list still tells the store's time.
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

        // Only now: a publisher whose note is not seen here began after the list was put, and heeds it.
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
            self.bury(&after).await?;
            self.objects.delete_once(&self.list).await?;
        }
        Ok(collected)
    }

    /// Remove whole snapshots, each manifest first: from then on that snapshot does not exist.
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

    /// Remove objects. Each request is answered before this answers; after an error some may not have been.
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

    /// Remove the lists of collections and the notes of publishers that are dead. What such notes named was kept this time, so
    /// that one who is not dead after all has until the next collection to find them gone.
    async fn bury(&self, view: &View) -> Result<(), CollectError> {
        let lists = self.objects.list(keys::CONDEMNED).await?;
        let own = lists.iter().find(|l| l.key == self.list);
        // The store's time, by the store. Without one nobody is dead.
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

    /// Remove the names of runtimes' snapshots that are not there. Should one name another since, that one goes, too, and the next deploy makes its own: nothing
    /// depends on it.
    async fn forget_names(&self, view: &View) -> Result<(), CollectError> {
        let gone = view.named.iter().filter(|(_, id)| !view.may_exist(id));
        for (key, _) in gone.filter(|_| !self.dry_run) {
            self.objects.delete_once(key).await?;
        }
        Ok(())
    }

    fn in_time(&self) -> Result<(), CollectError> {
        let (instant, time) = self.begun;
        // The one does not count while the machine sleeps, the other may be set back.
        let taken = instant.elapsed().max(time.elapsed().unwrap_or_default());
        if taken < RUN_LIMIT {
            Ok(())
        } else {
            Err(CollectError::TooLong)
        }
    }
}

/// What is left of snapshots that do not exist and are not about to: listed before, and still without manifest or publisher
/// afterwards. An id is used once, so nobody comes back to it.
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

/// Keys of all that a snapshot needs.
#[cfg(test)]
pub(crate) async fn needs_of<O: Objects>(objects: &O, id: &SnapshotId) -> BTreeSet<String> {
    let bundle = objects.list(&crate::keys::bundle(id)).await.unwrap()[0].len;
    match needs::learn(objects, id, Some(bundle)).await.unwrap() {
        Some(needs::Learnt::Needs(needs)) => needs.keys.clone(),
        other => panic!("{other:?}"),
    }
}
