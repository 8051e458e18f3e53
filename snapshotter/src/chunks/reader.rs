//! Reads regions from the chunk cache, or else from the store. Every returned region has been checked against its
//! digest.
//!
//! ```text
//! read(region) ─► zero? ─► cached on disk? ─► digest right? ─► bytes
//!                              │ no               │ no: drop the cached chunk
//!                              └─────────┬────────┘
//!                              one of the first? ─► fetch its payload ─► digest right? ─► bytes
//!                                        │ no             │ no
//!                                        ├────────────────┘
//!                              fetch the chunk, once for all waiters ─► digest right?
//!                                ├─► cache it in the background
//!                                └─► cut out and decode ─► digest right? ─► bytes
//! ```
//!
//! A payload comes much sooner than its chunk. Whoever has read some regions of a chunk is likely to need more of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join, try_join};
use parking_lot::Mutex;
use rekindle_store::Store;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::Instrument as _;

use super::cache::{CacheUse, ChunkCache};
use super::part::{ChunkPart, cut_out, decode, decode_into, not_held, zeros};
use super::read_error::ReadError;
use super::sealed::{get_part, open_chunk, read_sealed};
use crate::buffers::Buffers;
use crate::codec::{self, DecodeError, PAGE_BYTES};
use crate::digest::Digest;
use crate::keys;
use crate::pagemap::{ChunkRef, PageIndex, Payload, Region};
use crate::seal::{KeyId, Keyring, SealingKey};
use crate::single_flight::SingleFlight;

/// Idle buffers that are kept for whole-chunk reads, of up to 4 MiB each.
const SCRATCH: usize = 4;
/// Chunks on their way to the cache from which on each fetch waits for its own cache write. Bounds the memory they use.
const KEPT_BEHIND: usize = 4;
/// Size of a chunk, in bytes, from which on a region is worth a request of its own.
const ALONE_FROM: u32 = 1 << 20;
/// Number of regions of a chunk that are read by a request of their own, before all of it is fetched.
const ALONE: u8 = 4;
/// Number of chunks for which that is counted: 2 MiB.
const ALONE_MAX: usize = 1 << 16;
/// How long such a request may take. Whoever waits for a page still has time for its chunk.
const ALONE_LIMIT: Duration = Duration::from_secs(2);

/// Reads regions. Clones share everything.
#[derive(Clone)]
pub struct RegionReader {
    inner: Arc<Inner>,
}

/// Reads since the reader was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Regions read from the chunk cache.
    pub cached_regions: u64,
    /// Decoded bytes of those regions.
    pub cached_bytes: u64,
    /// Regions read from the store, including those that joined a fetch already in flight.
    pub fetched_regions: u64,
    /// Decoded bytes of those regions.
    pub fetched_bytes: u64,
    /// Regions of them that came before their chunk.
    pub fetched_alone: u64,
    /// Chunks fetched whole.
    pub fetched_chunks: u64,
}

#[derive(Default)]
struct Counts {
    cached: Tier,
    fetched: Tier,
    alone: AtomicU64,
    chunks: AtomicU64,
}

#[derive(Default)]
struct Tier {
    regions: AtomicU64,
    bytes: AtomicU64,
}

impl Tier {
    fn add(&self, bytes: u64) {
        self.regions.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Inner {
    store: Store,
    cache: ChunkCache,
    keys: Keyring,
    /// Whether the last cache write succeeded. A change is logged.
    caches: AtomicBool,
    counts: Counts,
    /// Buffers for chunks that are read whole, and for their regions.
    scratch: Buffers,
    /// Chunks that were fetched and are being written to the cache.
    being_kept: Mutex<HashMap<Digest, Bytes>>,
    /// Notified when one of these writes ends, successfully or not.
    kept: Notify,
    /// How many regions of each chunk were read alone since it was last in the cache.
    alone: Mutex<HashMap<Digest, u8>>,
    fetches: Arc<SingleFlight<Digest, Result<Bytes, ReadError>>>,
}

impl std::fmt::Debug for RegionReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionReader")
            .field("store", &self.inner.store)
            .finish_non_exhaustive()
    }
}

impl RegionReader {
    /// A reader of `store` through `cache`.
    pub fn new(store: Store, cache: ChunkCache) -> Self {
        Self::with_keys(store, cache, Keyring::default())
    }

    /// A reader of chunks that these keys open. `store` does not open them itself, so that the cache has them as they
    /// are in the store.
    pub fn with_keys(store: Store, cache: ChunkCache, keys: Keyring) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                cache,
                keys,
                caches: AtomicBool::new(true),
                counts: Counts::default(),
                scratch: Buffers::keeping(SCRATCH),
                being_kept: Mutex::default(),
                kept: Notify::new(),
                alone: Mutex::default(),
                fetches: Arc::default(),
            }),
        }
    }

    /// The key with this id, if it is at hand.
    pub fn key(&self, id: KeyId) -> Option<Arc<SealingKey>> {
        self.inner.keys.get(id)
    }

    /// How the cache is used.
    pub fn cache_usage(&self) -> CacheUse {
        self.inner.cache.usage()
    }

    /// What has been read so far.
    pub fn counts(&self) -> ReadCounts {
        let Counts {
            cached,
            fetched,
            alone,
            chunks,
        } = &self.inner.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ReadCounts {
            cached_regions: read(&cached.regions),
            cached_bytes: read(&cached.bytes),
            fetched_regions: read(&fetched.regions),
            fetched_bytes: read(&fetched.bytes),
            fetched_alone: read(alone),
            fetched_chunks: read(chunks),
        }
    }

    /// Whether a chunk is in the cache. The answer may be stale at once.
    pub fn is_cached(&self, chunk: &Digest) -> bool {
        self.inner.cache.contains(chunk)
    }

    /// The region's decoded and checked bytes. Fetches its chunk if it is not on this host.
    pub async fn read(&self, region: &Region) -> Result<Bytes, ReadError> {
        let Some(payload) = &region.payload else {
            return Ok(zeros(region));
        };
        let (this, wanted) = (self.clone(), *region);
        let chunk = payload.chunk;
        if let Some(bytes) = blocking(chunk, move || this.read_local(&wanted)).await? {
            return Ok(bytes);
        }
        let plain = match self.read_alone(region, payload).await {
            Some(plain) => plain,
            None => {
                // Fetch both chunks concurrently: one round trip.
                let (bytes, base) = try_join(self.fetch(chunk), self.read_base(region)).await?;
                let (wanted, payload) = (*region, *payload);
                blocking(chunk, move || cut_out(&wanted, &payload, &bytes, base.as_deref())).await??
            }
        };
        self.inner.counts.fetched.add(plain.len() as u64);
        Ok(plain)
    }

    /// The region, if it is one of the first of its chunk. `None` if that fails: the whole chunk tells why.
    async fn read_alone(&self, region: &Region, payload: &Payload) -> Option<Bytes> {
        if !self.inner.is_read_alone(payload.chunk) {
            return None;
        }
        // A task of its own, as the caller may be a thread with a small stack.
        let (this, region, payload) = (self.clone(), *region, *payload);
        let read = async move { timeout(ALONE_LIMIT, this.fetch_payload(&region, &payload)).await.ok()? };
        tokio::spawn(read.in_current_span()).await.ok()?
    }

    /// The region, by a request for nothing but its payload.
    async fn fetch_payload(&self, region: &Region, payload: &Payload) -> Option<Bytes> {
        let Inner { store, keys, .. } = &*self.inner;
        let range = u64::from(payload.offset)..u64::from(payload.offset) + u64::from(payload.len);
        let (stored, base) = join(get_part(store, keys, payload.chunk, range), self.read_base(region)).await;
        let (region, payload, stored, base) = (*region, *payload, stored?, base.ok()?);
        let decode = move || decode(&region, &payload, &stored, base.as_deref());
        let plain = blocking(payload.chunk, decode).await.ok()?.ok()?;
        self.inner.counts.alone.fetch_add(1, Ordering::Relaxed);
        Some(plain)
    }

    /// The bytes of the region's base, if the region is stored as a difference.
    fn read_base<'a>(&'a self, region: &'a Region) -> BoxFuture<'a, Result<Option<Bytes>, ReadError>> {
        Box::pin(async move {
            match &region.base {
                // A base is never a difference itself, so the recursion ends.
                Some(base) => self.read(&base.region()).await.map(Some),
                None => Ok(None),
            }
        })
    }

    /// The region's decoded bytes if they are available without the network. For threads that may block on the disk but
    /// have no runtime. If a cached chunk turns out to be corrupt, it is dropped and the answer is `None`.
    pub fn read_local(&self, region: &Region) -> Option<Bytes> {
        let Some(payload) = &region.payload else {
            return Some(zeros(region));
        };
        let chunk = &payload.chunk.id;
        let mut stored = vec![0; payload.len as usize];
        self.inner.read_cached(payload.chunk, payload.offset, &mut stored)?;
        let base = match &region.base {
            Some(base) => Some(self.read_local(&base.region())?),
            None => None,
        };
        match decode(region, payload, &stored, base.as_deref()) {
            Ok(bytes) => {
                self.inner.counts.cached.add(bytes.len() as u64);
                Some(bytes)
            }
            Err(error) => {
                self.drop_corrupt(chunk, &error);
                None
            }
        }
    }

    /// Waits until every fetched chunk has been written to the cache, or its write has failed. Call this before reading
    /// or removing the cache's directory.
    pub async fn settled(&self) {
        loop {
            let mut kept = std::pin::pin!(self.inner.kept.notified());
            kept.as_mut().enable();
            if self.inner.being_kept.lock().is_empty() {
                return;
            }
            kept.await;
        }
    }

    /// Makes sure a chunk is on this host.
    pub async fn bring(&self, chunk: ChunkRef) -> Result<(), ReadError> {
        if self.inner.cache.contains(&chunk.id) {
            return Ok(());
        }
        self.fetch(chunk).await.map(drop)
    }

    /// Calls `take` with the decoded, checked bytes of each of these regions of one chunk, and with its index among
    /// `regions`. For reading ahead. The chunk and those of the regions' bases are fetched at most once each. Decoding
    /// runs on one of the runtime's blocking threads, in a few reused buffers. `take` may see a region twice if a
    /// cached chunk turns out to be corrupt midway.
    pub async fn read_chunk(
        &self,
        chunk: ChunkRef,
        regions: Arc<[Region]>,
        mut take: impl FnMut(usize, &[u8]) + Send + 'static,
    ) -> Result<(), ReadError> {
        let mut bases = HashMap::new();
        for base in regions.iter().filter_map(|region| region.base) {
            let chunk = base.payload.chunk;
            if let Entry::Vacant(place) = bases.entry(chunk) {
                place.insert(self.fetch(chunk).await?);
            }
        }
        let bases = Arc::new(bases);
        if self.inner.cache.contains(&chunk.id) {
            let (this, wanted, bases) = (self.clone(), Arc::clone(&regions), Arc::clone(&bases));
            let each = move || (this.each_local(chunk, &wanted, &bases, &mut take), take);
            let (done, back) = blocking(chunk, each).await?;
            if done {
                return Ok(());
            }
            take = back;
        }
        let bytes = self.fetch(chunk).await?;
        let this = self.clone();
        let each = move || {
            let counted = &this.inner.counts.fetched;
            let held = ChunkPart {
                chunk,
                from: 0,
                bytes: &bytes,
            };
            let done = this.each_of(held, &regions, &bases, counted, &mut take);
            done.map_err(|(at, first, cause)| not_held(first, at, cause))
        };
        blocking(chunk, each).await?
    }

    /// Like `read_chunk`, from the cached chunk, which is read in one go. Returns `false` if it is not in the cache, or
    /// was corrupt and has been dropped.
    fn each_local(
        &self,
        chunk: ChunkRef,
        regions: &[Region],
        bases: &HashMap<ChunkRef, Bytes>,
        take: &mut impl FnMut(usize, &[u8]),
    ) -> bool {
        let payloads = || regions.iter().filter_map(|r| r.payload);
        let from = payloads().map(|p| p.offset).min().unwrap_or(0);
        let to = payloads().map(|p| p.offset.saturating_add(p.len).min(chunk.len)).max();
        let len = to.unwrap_or(from).saturating_sub(from) as usize;
        let mut bytes = self.inner.scratch.filled(len);
        if self.inner.read_cached(chunk, from, &mut bytes).is_none() {
            return false;
        }
        let bytes = &bytes;
        match self.each_of(
            ChunkPart { chunk, from, bytes },
            regions,
            bases,
            &self.inner.counts.cached,
            take,
        ) {
            Ok(()) => true,
            Err((at, _, error)) => {
                self.drop_corrupt(&at.id, &error);
                false
            }
        }
    }

    /// Like `read_chunk`, from this part of the chunk. Stops at the first region that cannot be decoded and returns the
    /// chunk at fault.
    fn each_of(
        &self,
        held: ChunkPart<'_>,
        regions: &[Region],
        bases: &HashMap<ChunkRef, Bytes>,
        counted: &Tier,
        take: &mut impl FnMut(usize, &[u8]),
    ) -> Result<(), (ChunkRef, PageIndex, DecodeError)> {
        let (mut plain, mut own) = (self.inner.scratch.empty(0), self.inner.scratch.empty(0));
        for (at, region) in regions.iter().enumerate() {
            let Some(payload) = &region.payload else {
                take(at, &zeros(region));
                continue;
            };
            let base = match &region.base {
                Some(base) => {
                    let chunk = base.payload.chunk;
                    let bytes = bases.get(&chunk).map_or(&[][..], |bytes| bytes);
                    own.resize(usize::from(base.pages) * PAGE_BYTES, 0);
                    let held = ChunkPart { chunk, from: 0, bytes }.of(&base.payload);
                    codec::decode(base.payload.encoding, held, base.payload.hash, &mut own)
                        .map_err(|cause| (chunk, base.first, cause))?;
                    Some(&own[..])
                }
                None => None,
            };
            plain.resize(region.plain_len(), 0);
            decode_into(region, payload, held.of(payload), base, &mut plain)
                .map_err(|cause| (held.chunk, region.first, cause))?;
            counted.add(plain.len() as u64);
            take(at, &plain);
        }
        Ok(())
    }

    fn drop_corrupt(&self, chunk: &Digest, error: &DecodeError) {
        let error = error as &dyn std::error::Error;
        tracing::warn!(chunk = %chunk, error, "cached chunk is corrupt and dropped");
        self.inner.cache.remove(chunk);
    }

    /// The whole chunk, checked. Concurrent calls for the same chunk share one fetch.
    async fn fetch(&self, chunk: ChunkRef) -> Result<Bytes, ReadError> {
        let inner = self.inner.clone();
        let fetched = self.inner.fetches.join(chunk.id, || inner.fetch_and_cache(chunk)).await;
        fetched.unwrap_or(Err(ReadError::Shutdown { chunk: chunk.id }))
    }
}

impl Inner {
    /// Whether a region that is read now comes by a request of its own: one of the first of a large chunk.
    fn is_read_alone(&self, chunk: ChunkRef) -> bool {
        let is_here = || self.being_kept.lock().contains_key(&chunk.id) || self.cache.contains(&chunk.id);
        if chunk.len < ALONE_FROM || is_here() {
            return false;
        }
        let mut alone = self.alone.lock();
        if alone.len() >= ALONE_MAX {
            alone.clear();
        }
        let regions = alone.entry(chunk.id).or_default();
        *regions += u8::from(*regions <= ALONE);
        *regions <= ALONE
    }

    /// Writes a chunk to the cache. A failure, such as a full disk, is only logged.
    fn keep(&self, chunk: ChunkRef, bytes: &[u8]) {
        match self.cache.insert(chunk, bytes) {
            Ok(_) if self.caches.swap(true, Ordering::Relaxed) => {}
            Ok(_) => tracing::info!("chunks can be cached again"),
            Err(error) => {
                // The caller has the bytes anyway: a full disk makes restores slower, not impossible.
                let error = &error as &dyn std::error::Error;
                if self.caches.swap(false, Ordering::Relaxed) {
                    tracing::warn!(chunk = %chunk.id, error, "chunks cannot be cached");
                }
            }
        }
    }

    async fn fetch_and_cache(self: Arc<Self>, chunk: ChunkRef) -> Result<Bytes, ReadError> {
        // A caller that looked before an earlier fetch ended looks again: the chunk may be local now.
        let this = Arc::clone(&self);
        if let Some(bytes) = blocking(chunk, move || this.whole_local(chunk)).await? {
            return Ok(bytes);
        }
        self.cache.missed();
        let FetchedChunk { stored, bytes } = Box::pin(self.fetch_checked(chunk)).await?;
        // The waiters, such as a page fault, must not wait for the disk.
        let being_kept = {
            let mut being_kept = self.being_kept.lock();
            being_kept.insert(chunk.id, bytes.clone());
            being_kept.len()
        };
        let this = Arc::clone(&self);
        let keeping = tokio::task::spawn_blocking(move || {
            this.keep(chunk, &stored);
            this.alone.lock().remove(&chunk.id);
            this.being_kept.lock().remove(&chunk.id);
            this.kept.notify_waiters();
        });
        if being_kept >= KEPT_BEHIND {
            // The task does not panic, so it can only fail on shutdown.
            let _ = keeping.await;
        }
        Ok(bytes)
    }

    /// The whole chunk from the cache, checked.
    fn whole_local(&self, chunk: ChunkRef) -> Option<Bytes> {
        if let Some(bytes) = self.being_kept.lock().get(&chunk.id) {
            return Some(bytes.clone());
        }
        if !self.cache.contains(&chunk.id) {
            return None;
        }
        let mut bytes = vec![0; chunk.len as usize];
        let key = self.read_cached(chunk, 0, &mut bytes)?;
        let found = key.map_or_else(|| Digest::of(&bytes), |key| key.digest(&bytes));
        (found == chunk.id).then(|| bytes.into())
    }

    /// Fills `into` from a cached chunk, starting at `offset`. Returns the key that opened it, if one was needed.
    /// `None` if the chunk is not in the cache, or cannot be read and was dropped.
    fn read_cached(&self, chunk: ChunkRef, offset: u32, into: &mut [u8]) -> Option<Option<Arc<SealingKey>>> {
        if self.keys.is_empty() {
            return self.cache.read(&chunk.id, u64::from(offset), into).then_some(None);
        }
        let read = |file: &File, len| read_sealed(&self.keys, chunk, (file, len), u64::from(offset), into);
        self.cache.read_with(&chunk.id, read)
    }

    async fn fetch_checked(&self, chunk: ChunkRef) -> Result<FetchedChunk, ReadError> {
        let stored = self
            .store
            .get(&keys::chunk(&chunk.id))
            .await
            .map_err(|cause| ReadError::Fetch {
                chunk: chunk.id,
                cause: Arc::new(cause),
            })?;
        self.counts.chunks.fetch_add(1, Ordering::Relaxed);
        let (keys, sealed) = (self.keys.clone(), stored.clone());
        let bytes = blocking(chunk, move || open_chunk(&keys, chunk.id, sealed)).await??;
        Ok(FetchedChunk { stored, bytes })
    }
}

/// A chunk from the store, checked.
struct FetchedChunk {
    /// As the store has it.
    stored: Bytes,
    /// As the page map means it.
    bytes: Bytes,
}

/// Runs work on a chunk's bytes on a thread that may block.
async fn blocking<T: Send + 'static>(
    chunk: ChunkRef,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ReadError::Shutdown { chunk: chunk.id })
}
