//! The publisher's half of the protocol (decision 7): note what you rely on, then check whether it is condemned.
//!
//! ```text
//! protect(names) ─► put publishing/OWNER/N ─► list collecting/, get new lists ─► which names may be used
//! …                                          (chunks are looked up or put only now)
//! confirm() ─► publishing/OWNER/ is complete ─► put the manifest ─► finish(): remove publishing/OWNER/
//! ```
//!
//! Nobody waits: a condemned name is simply not used. A chunk that was to be shared is then stored again, and a new
//! chunk gets another name from a zero byte at its end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use rekindle_store::{Store, StoreError};
use rekindle_wire::{FunctionId, SnapshotId, VersionNumber};
use uuid::Uuid;

use super::names::{self, NamesError};
use super::objects::Objects;
use crate::keys;

/// Time limit of a publication. What it relies on is safe for [`super::LIFE`], which is far longer.
pub const PUBLICATION_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Concurrent removals of notes.
const CALLS_AT_ONCE: usize = 8;

/// Why a publisher must stop.
#[derive(Debug, thiserror::Error)]
pub enum PublicationError {
    /// The store failed.
    #[error("could not note in the store what is relied on")]
    Store(#[from] StoreError),
    /// A list in the store cannot be parsed.
    #[error("{key} cannot be read, so it is not known what a collection deletes")]
    Names {
        /// The list.
        key: String,
        /// The parser's error.
        #[source]
        cause: NamesError,
    },
    /// The publication took too long, or a collection considered it dead.
    #[error("{0} took too long: publish again")]
    Expired(String),
    /// No name for an object's contents may be used.
    #[error("every name tried for a new object is being deleted by a collection: publish again")]
    NoName,
}

/// A publisher, by the name of its folder in the store. Only one publisher at a time uses a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner(String);

impl Owner {
    /// A snapshot being published.
    pub fn snapshot(id: &SnapshotId) -> Self {
        Self(id.as_str().to_owned())
    }

    /// A deploy. It relies on layers until its version is recorded.
    pub fn deploy(function: &FunctionId, version: VersionNumber) -> Self {
        Self(format!("v-{function}-{version}"))
    }

    /// Any other publisher, with a unique name.
    pub fn other() -> Self {
        Self(format!("o-{}", Uuid::now_v7().simple()))
    }

    /// The name of its folder.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the name is that of a deploy's folder.
pub(super) fn is_deploy(owner: &str) -> bool {
    owner.starts_with("v-")
}

/// A publication in progress. Clones share it. If it is dropped without [`Publication::finish`], what it relied on
/// stays safe until its notes expire. That is right for a publisher that does not know whether its last put took
/// effect.
#[derive(Debug, Clone)]
pub struct Publication<O: Objects = Store> {
    inner: Arc<Inner<O>>,
}

#[derive(Debug)]
struct Inner<O> {
    objects: O,
    owner: Owner,
    /// Distinguishes its notes from those of another publisher with the same name.
    id: String,
    begun: (Instant, SystemTime),
    /// Names that wait for the current round to end. The next round takes them all.
    waiting: Mutex<Vec<String>>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Notes begun: lower numbers may exist.
    begun: u32,
    /// Notes whose puts were confirmed, so they exist.
    written: Vec<u32>,
    /// Names asked for, and whether they may be used.
    verdicts: HashMap<String, bool>,
    /// Lists of condemned names read so far. A list never changes.
    lists: HashMap<String, HashSet<String>>,
}

impl<O: Objects> Publication<O> {
    /// A publication that does not rely on anything yet. Sends no request.
    pub fn new(objects: O, owner: Owner) -> Self {
        Self {
            inner: Arc::new(Inner {
                objects,
                owner,
                id: Uuid::now_v7().simple().to_string(),
                begun: (Instant::now(), SystemTime::now()),
                waiting: Mutex::default(),
                state: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Protects the objects with these keys, whether they exist already or are yet to be put. Returns the keys that may
    /// be relied on until [`Publication::finish`]: no collection deletes those. All others may vanish at any moment,
    /// even if they are put again. Concurrent calls share their requests: one put and one listing. A call without names
    /// still announces the publisher, so that its snapshot's folder does not count as remains.
    pub async fn protect(&self, names: &[String]) -> Result<HashSet<String>, PublicationError> {
        self.inner.waiting.lock().extend_from_slice(names);
        let mut state = self.inner.state.lock().await;
        let mut round: HashSet<String> = std::mem::take(&mut *self.inner.waiting.lock()).into_iter().collect();
        // Another call's round may have taken our names and failed.
        round.extend(names.iter().cloned());
        round.retain(|name| !state.verdicts.contains_key(name));
        if !round.is_empty() || state.written.is_empty() {
            self.in_time()?;
            self.round(&mut state, round).await?;
        }
        let usable = |name: &&String| state.verdicts.get(*name) == Some(&true);
        Ok(names.iter().filter(usable).cloned().collect())
    }

    /// Whether an object of this name may be put and relied on.
    pub async fn protect_one(&self, name: String) -> Result<bool, PublicationError> {
        Ok(self.protect(&[name]).await?.len() == 1)
    }

    async fn round(&self, state: &mut State, names: HashSet<String>) -> Result<(), PublicationError> {
        let objects = &self.inner.objects;
        let number = state.begun;
        let key = self.note(number);
        let note = names::encode(&names).map_err(unreadable(&key))?;
        // Counted first: a put without a response may have taken effect, or may do so later.
        state.begun += 1;
        objects.put(&key, note).await?;
        state.written.push(number);
        // The order matters: a collection that has not seen the note put its list before, so we see the list.
        for list in objects.list(keys::CONDEMNED).await? {
            if state.lists.contains_key(&list.key) {
                continue;
            }
            match objects.get(&list.key).await {
                Ok(bytes) => {
                    let names = names::parse(&bytes).map_err(unreadable(&list.key))?;
                    state.lists.insert(list.key, names.into_iter().collect());
                }
                // That collection has ended, and none of its requests is in flight.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        for name in names {
            let condemned = state.lists.values().any(|list| list.contains(&name));
            state.verdicts.insert(name, !condemned);
        }
        Ok(())
    }

    /// Checks that everything relied on is still protected. Must be called right before putting the object that refers
    /// to it.
    pub async fn confirm(&self) -> Result<(), PublicationError> {
        self.protect(&[]).await?;
        let state = self.inner.state.lock().await;
        let owner = self.inner.owner.as_str();
        let there = self.inner.objects.list(&keys::publishing(owner)).await?;
        let there: HashSet<&str> = there.iter().map(|o| o.key.as_str()).collect();
        let stands = |number: &u32| there.contains(self.note(*number).as_str());
        if !state.written.iter().all(stands) {
            return Err(PublicationError::Expired(owner.to_owned()));
        }
        self.in_time()
    }

    /// Ends the publication: it relies on nothing any more, or the object that refers to everything exists. Must not be
    /// called while a put of that object may still be in flight. Notes that cannot be removed expire.
    pub async fn finish(self) {
        let begun = self.inner.state.lock().await.begun;
        let remove = |number| {
            let (key, inner) = (self.note(number), &self.inner);
            async move {
                if let Err(error) = inner.objects.delete_once(&key).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(key, error, "note of a publish that is over stays until it expires");
                }
            }
        };
        stream::iter(0..begun).for_each_concurrent(CALLS_AT_ONCE, remove).await;
    }

    fn note(&self, number: u32) -> String {
        keys::note(self.inner.owner.as_str(), &self.inner.id, number)
    }

    fn in_time(&self) -> Result<(), PublicationError> {
        let (instant, time) = self.inner.begun;
        // The first clock stops while the machine sleeps. The second one may be set back.
        let taken = instant.elapsed().max(time.elapsed().unwrap_or_default());
        if taken < PUBLICATION_LIMIT {
            return Ok(());
        }
        Err(PublicationError::Expired(self.inner.owner.as_str().to_owned()))
    }
}

fn unreadable(key: &str) -> impl FnOnce(NamesError) -> PublicationError {
    let key = key.to_owned();
    move |cause| PublicationError::Names { key, cause }
}

/// Removes the notes of a publisher that is known to have ended.
pub async fn forget<O: Objects>(objects: &O, owner: &Owner) -> Result<(), StoreError> {
    for object in objects.list(&keys::publishing(owner.as_str())).await? {
        objects.delete_once(&object.key).await?;
    }
    Ok(())
}
