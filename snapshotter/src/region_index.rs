//! Index of the regions that the store already has, so that a new snapshot refers to them instead of storing them
//! again.
//!
//! Kept in memory until its snapshots are gone, and seeded from the page maps of the newest snapshots. An entry is used
//! only after the same publish has protected its chunk from collection and then seen it in the store
//! (`RegionIndex::confirm`). So an entry here never brings back a collected chunk.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use rekindle_store::{Store, StoreError};
use rekindle_wire::SnapshotId;
use tokio::sync::OnceCell;

use crate::codec::Encoding;
use crate::collect::{Publication, PublicationError};
use crate::digest::Digest;
use crate::keys;
use crate::pagemap::{ChunkRef, Payload, Region};
use crate::seal::KeyId;
use crate::snapshot::read_page_maps;

/// Snapshots whose page maps seed the index.
const SEED_SNAPSHOTS: usize = 64;
/// Concurrent reads of page maps or look-ups of chunks.
const CALLS_AT_ONCE: usize = 8;
/// Maximum number of regions kept, at about 80 bytes each. Later ones are stored again rather than remembered.
const REGIONS_MAX: usize = 1 << 20;

/// Regions by digest. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct RegionIndex {
    state: Arc<Mutex<State>>,
    /// Regions of encrypted snapshots, by key: these share nothing with others.
    sealed: Arc<Mutex<HashMap<KeyId, RegionIndex>>>,
}

#[derive(Debug, Default)]
struct State {
    regions: HashMap<Digest, RegionLocation>,
    /// Chunks by number, as `RegionLocation` refers to them.
    chunks: HashMap<u32, ChunkRef>,
    numbers: HashMap<ChunkRef, u32>,
    /// The number of the next chunk.
    next: u32,
}

#[derive(Debug, Clone, Copy)]
struct RegionLocation {
    chunk: u32,
    offset: u32,
    len: u32,
    encoding: Encoding,
}

impl RegionIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// The index for snapshots that are encrypted with this key, or for those that are not.
    pub(crate) fn of(&self, key: Option<KeyId>) -> Self {
        match key {
            Some(key) => self.sealed.lock().entry(key).or_default().clone(),
            None => self.clone(),
        }
    }

    /// Number of known regions of snapshots that are not encrypted.
    pub fn len(&self) -> usize {
        self.state.lock().regions.len()
    }

    /// Whether no region is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Learns the regions of the newest snapshots in the store. A snapshot that cannot be read is skipped with a
    /// warning, and its regions are then stored again. Returns how many snapshots were read.
    pub async fn seed(&self, store: &Store) -> Result<usize, StoreError> {
        let mut ids: Vec<SnapshotId> = store
            .list_folders(keys::SNAPSHOTS)
            .await?
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        // Ids start with their creation time.
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.truncate(SEED_SNAPSHOTS);
        let maps = stream::iter(ids).map(|id| Box::pin(async move { (read_page_maps(store, &id).await, id) }));
        let mut read = 0;
        let mut maps = maps.buffered(CALLS_AT_ONCE);
        while let Some((result, id)) = maps.next().await {
            match result {
                Ok(maps) => {
                    let regions = maps.iter().flat_map(|m| m.regions());
                    let payloads = regions.filter_map(Region::plain_payload);
                    self.learn(payloads);
                    read += 1;
                }
                // A snapshot that is still being published, or was deleted meanwhile.
                Err(error) if error.is_not_found() => {}
                // Its key comes with the first order of its namespace.
                Err(error) if error.is_sealed() => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(snapshot = %id, error, "snapshot not used for deduplication");
                }
            }
        }
        Ok(read)
    }

    /// Remembers payloads.
    pub(crate) fn learn(&self, payloads: impl IntoIterator<Item = Payload>) {
        let mut state = self.state.lock();
        for payload in payloads {
            if state.regions.len() >= REGIONS_MAX {
                return;
            }
            let chunk = state.number(payload.chunk);
            let known = RegionLocation {
                chunk,
                offset: payload.offset,
                len: payload.len,
                encoding: payload.encoding,
            };
            state.regions.entry(payload.hash).or_insert(known);
        }
    }

    /// Forgets everything in these chunks: they are missing or corrupt, or their snapshots are gone. Their regions are
    /// then stored again.
    pub fn forget(&self, chunks: &HashSet<Digest>) {
        self.state.lock().forget(chunks);
        // Those of a namespace that was removed have nothing left in the end.
        self.sealed.lock().retain(|_, index| {
            index.state.lock().forget(chunks);
            // One that is empty may be a publication's that has just begun.
            !index.is_empty() || Arc::strong_count(&index.state) > 1
        });
    }

    /// Locates the regions with these digests that are in the store now and are kept for this publication. Each chunk
    /// is protected, then looked up once per `presence`, which takes some milliseconds for 4 MiB of regions. Regions of
    /// chunks that are missing, truncated or about to be collected are forgotten.
    pub(crate) async fn confirm(
        &self,
        store: &Store,
        publication: &Publication,
        presence: &ChunkPresence,
        hashes: impl Iterator<Item = Digest>,
    ) -> Result<HashMap<Digest, Payload>, PublicationError> {
        let mut found: HashMap<Digest, Payload> = {
            let state = self.state.lock();
            hashes.filter_map(|hash| Some((hash, state.payload(hash)?))).collect()
        };
        let mut chunks: HashSet<ChunkRef> = found.values().map(|p| p.chunk).collect();
        if chunks.is_empty() {
            return Ok(found);
        }
        let names: Vec<String> = chunks.iter().map(|chunk| keys::chunk(&chunk.id)).collect();
        let usable = publication.protect(&names).await?;
        let is_usable = |chunk: &ChunkRef| usable.contains(&keys::chunk(&chunk.id));
        let condemned: HashSet<Digest> = chunks.iter().filter(|c| !is_usable(c)).map(|c| c.id).collect();
        self.forget(&condemned);
        found.retain(|_, payload| !condemned.contains(&payload.chunk.id));
        chunks.retain(|chunk| !condemned.contains(&chunk.id));
        // Only now: a chunk seen after it was protected stays there.
        let looked_up: Vec<(ChunkRef, bool)> = stream::iter(chunks)
            .map(|chunk| Box::pin(async move { presence.of(store, chunk).await.map(|is| (chunk, is)) }))
            .buffer_unordered(CALLS_AT_ONCE)
            .try_collect()
            .await?;
        let gone = looked_up.iter().filter(|(_, is)| !is).map(|(chunk, _)| chunk.id);
        let gone: HashSet<Digest> = gone.collect();
        if !gone.is_empty() {
            found.retain(|_, payload| !gone.contains(&payload.chunk.id));
            self.forget(&gone);
        }
        Ok(found)
    }
}

/// Chunks that one publish has seen in the store. Each is looked up once, however many batches of memory refer to it.
#[derive(Debug, Default)]
pub(crate) struct ChunkPresence {
    chunks: Mutex<HashMap<ChunkRef, Arc<OnceCell<bool>>>>,
}

impl ChunkPresence {
    async fn of(&self, store: &Store, chunk: ChunkRef) -> Result<bool, StoreError> {
        let seen = Arc::clone(self.chunks.lock().entry(chunk).or_default());
        let looked = seen.get_or_try_init(|| {
            Box::pin(async {
                let is = exists(store, chunk).await?;
                if !is {
                    tracing::warn!(
                        chunk = %chunk.id,
                        "chunk of an existing snapshot is missing, its regions are stored again"
                    );
                }
                Ok(is)
            })
        });
        looked.await.copied()
    }
}

impl State {
    /// The number of a chunk, which it gets now if it is new.
    fn number(&mut self, chunk: ChunkRef) -> u32 {
        let next = self.next;
        let number = *self.numbers.entry(chunk).or_insert(next);
        if number == next {
            self.chunks.insert(number, chunk);
            self.next = self.next.wrapping_add(1);
        }
        number
    }

    fn payload(&self, hash: Digest) -> Option<Payload> {
        let known = self.regions.get(&hash)?;
        Some(Payload {
            hash,
            encoding: known.encoding,
            chunk: *self.chunks.get(&known.chunk)?,
            offset: known.offset,
            len: known.len,
        })
    }

    fn forget(&mut self, chunks: &HashSet<Digest>) {
        let before = self.chunks.len();
        self.chunks.retain(|_, chunk| !chunks.contains(&chunk.id));
        if self.chunks.len() == before {
            return;
        }
        self.numbers.retain(|_, number| self.chunks.contains_key(number));
        self.regions.retain(|_, known| self.chunks.contains_key(&known.chunk));
        // A table keeps its size when entries go.
        if self.regions.len() < self.regions.capacity() / 4 {
            self.regions.shrink_to(self.regions.len() * 2);
        }
    }
}

/// Whether the chunk is in the store in its full size.
async fn exists(store: &Store, chunk: ChunkRef) -> Result<bool, StoreError> {
    match store.head(&keys::chunk(&chunk.id)).await {
        Ok(found) => Ok(found.len == u64::from(chunk.len)),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_takes_no_memory_and_can_be_learnt_again() {
        let payload = |n: u32| Payload {
            hash: Digest::of(&n.to_le_bytes()),
            encoding: Encoding::Raw,
            chunk: ChunkRef {
                id: Digest::of(&[(n % 10) as u8]),
                len: 4 << 20,
            },
            offset: n,
            len: 1,
        };
        let index = RegionIndex::new();
        index.learn((0..10_000).map(payload));
        let all = index.state.lock().regions.capacity();
        let chunks = |numbers: std::ops::Range<u32>| numbers.map(|n| payload(n).chunk.id).collect();
        index.forget(&chunks(1..10));
        assert_eq!(index.len(), 1_000);
        assert!(index.state.lock().regions.capacity() <= all / 4);

        index.learn((0..20).map(payload));
        let known = |n| index.state.lock().payload(payload(n).hash);
        assert_eq!([10, 11, 21].map(known), [Some(payload(10)), Some(payload(11)), None]);

        index.forget(&chunks(0..10));
        let state = index.state.lock();
        assert_eq!(
            (state.regions.capacity(), state.chunks.len(), state.numbers.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn nothing_stays_of_a_key_whose_snapshots_are_gone() {
        let index = RegionIndex::new();
        let key = |byte: char| Some(byte.to_string().repeat(32).parse::<KeyId>().unwrap());
        let payload = |n: u8| Payload {
            hash: Digest::of(&[n]),
            encoding: Encoding::Raw,
            chunk: ChunkRef {
                id: Digest::of(&[n]),
                len: 1,
            },
            offset: 0,
            len: 1,
        };
        index.of(key('a')).learn([payload(1)]);
        index.of(key('b')).learn([payload(2)]);
        index.forget(&HashSet::from([payload(1).chunk.id]));
        let left: Vec<Option<KeyId>> = index.sealed.lock().keys().map(|key| Some(*key)).collect();
        assert_eq!(left, [key('b')]);
    }
}
