//! Chunks on this host's disk, one file per chunk, named by its digest. Their total size is bounded. Eviction is
//! greedy-dual: small chunks stay longer because each costs a round trip, and of equal chunks the least recently used
//! goes.
//!
//! Chunks of encrypted snapshots lie here encrypted, as in the store.
//!
//! Only whole chunks whose digest was checked are inserted, by rename. The reader checks every region again on the way
//! out, so a file that rots on disk is detected. All calls block on disk I/O. Only one process at a time may use a
//! directory.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::digest::Digest;
use crate::pagemap::ChunkRef;
use rekindle_retention::GreedyDual;

/// The approximate duration of a round trip to the store, and bytes received per second. Only their ratio decides which
/// chunks are worth keeping.
const ROUND_TRIP: Duration = Duration::from_millis(30);
const BYTES_A_SECOND: u64 = 200 << 20;

/// The cost of fetching a chunk of `bytes` again.
fn cost(bytes: u64) -> Duration {
    ROUND_TRIP + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / BYTES_A_SECOND)
}

/// The cache's directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("could not use the chunk cache {}", path.display())]
pub struct CacheError {
    path: PathBuf,
    #[source]
    cause: io::Error,
}

/// A directory of chunks. Clones share it.
#[derive(Debug, Clone)]
pub struct ChunkCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    max_bytes: u64,
    temporary: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Length of each chunk.
    chunks: HashMap<Digest, u64>,
    bytes: u64,
    worth: GreedyDual<Digest>,
    evicted: u64,
    evicted_bytes: u64,
}

/// How a cache is used. Counters start when the cache is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheUse {
    /// Bytes in the cache.
    pub bytes: u64,
    /// Maximum bytes in the cache.
    pub max_bytes: u64,
    /// Chunks in the cache.
    pub chunks: u64,
    /// Reads that the cache answered.
    pub hits: u64,
    /// Chunks that had to be fetched.
    pub misses: u64,
    /// Evicted chunks.
    pub evicted: u64,
    /// Bytes of the evicted chunks.
    pub evicted_bytes: u64,
}

impl ChunkCache {
    /// Opens the cache in `dir`, which is created if it is absent. Chunks from an earlier run are kept. Unfinished and
    /// foreign files are removed.
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Self, CacheError> {
        let refused = |cause| CacheError {
            path: dir.to_owned(),
            cause,
        };
        fs::create_dir_all(dir).map_err(refused)?;
        let state = scan(dir).map_err(refused)?;
        let cache = Self {
            inner: Arc::new(Inner {
                dir: dir.to_owned(),
                max_bytes,
                temporary: AtomicU64::new(0),
                hits: AtomicU64::new(0),
                misses: AtomicU64::new(0),
                state: Mutex::new(state),
            }),
        };
        cache.evict(&mut cache.inner.state.lock(), None);
        Ok(cache)
    }

    /// Bytes in the cache.
    pub fn bytes(&self) -> u64 {
        self.inner.state.lock().bytes
    }

    /// How the cache is used.
    pub fn usage(&self) -> CacheUse {
        let state = self.inner.state.lock();
        CacheUse {
            bytes: state.bytes,
            max_bytes: self.inner.max_bytes,
            chunks: state.chunks.len() as u64,
            hits: self.inner.hits.load(Ordering::Relaxed),
            misses: self.inner.misses.load(Ordering::Relaxed),
            evicted: state.evicted,
            evicted_bytes: state.evicted_bytes,
        }
    }

    /// Counts a chunk that has to be fetched.
    pub(super) fn missed(&self) {
        self.inner.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the chunk is in the cache. The answer may be stale at once.
    pub fn contains(&self, id: &Digest) -> bool {
        self.inner.state.lock().chunks.contains_key(id)
    }

    /// Fills `into` from the chunk, starting at `offset`. Returns `false` if the chunk is not in the cache. A chunk
    /// that is too short or unreadable is dropped, which also returns `false`.
    pub(super) fn read(&self, id: &Digest, offset: u64, into: &mut [u8]) -> bool {
        self.read_with(id, |file, _| file.read_exact_at(into, offset)).is_some()
    }

    /// Calls `read` with the chunk's file and its size. Returns `None` if the chunk is not in the cache. A chunk that
    /// cannot be read is dropped, which also returns `None`.
    pub(super) fn read_with<T>(&self, id: &Digest, read: impl FnOnce(&fs::File, u64) -> io::Result<T>) -> Option<T> {
        let bytes;
        {
            let mut state = self.inner.state.lock();
            bytes = state.chunks.get(id).copied()?;
            state.worth.used(*id, cost(bytes), bytes);
        }
        match fs::File::open(self.path(id)).and_then(|file| read(&file, bytes)) {
            Ok(done) => {
                self.inner.hits.fetch_add(1, Ordering::Relaxed);
                Some(done)
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(chunk = %id, error, "cached chunk cannot be read and is dropped");
                self.remove(id);
                None
            }
        }
    }

    /// Inserts a chunk whose digest was checked. A chunk larger than the whole cache is not inserted.
    pub(super) fn insert(&self, chunk: ChunkRef, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        if len > self.inner.max_bytes {
            return Ok(());
        }
        let number = self.inner.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.inner.dir.join(format!("tmp-{number}"));
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, self.path(&chunk.id)));
        if written.is_err() {
            // The temporary file may not even exist.
            drop(fs::remove_file(&temporary));
            return written;
        }
        let mut state = self.inner.state.lock();
        if let Some(before) = state.chunks.insert(chunk.id, len) {
            state.bytes -= before;
        }
        state.worth.used(chunk.id, cost(len), len);
        state.bytes += len;
        self.evict(&mut state, Some(&chunk.id));
        Ok(())
    }

    /// Drops a chunk that was found corrupt.
    pub(super) fn remove(&self, id: &Digest) {
        let mut state = self.inner.state.lock();
        if let Some(bytes) = state.chunks.remove(id) {
            state.bytes -= bytes;
        }
        state.worth.forget(id);
        // A file that is already gone is fine.
        drop(fs::remove_file(self.path(id)));
    }

    fn evict(&self, state: &mut State, but: Option<&Digest>) {
        while state.bytes > self.inner.max_bytes {
            let candidates = state.chunks.keys().filter(|id| Some(*id) != but);
            let Some(id) = state.worth.least(candidates).copied() else {
                return;
            };
            state.worth.gone(&id);
            state.worth.forget(&id);
            if let Some(bytes) = state.chunks.remove(&id) {
                state.bytes -= bytes;
                state.evicted += 1;
                state.evicted_bytes += bytes;
            }
            if let Err(error) = fs::remove_file(self.path(&id)) {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(chunk = %id, error, "cached chunk could not be removed");
            }
        }
    }

    fn path(&self, id: &Digest) -> PathBuf {
        self.inner.dir.join(id.to_string())
    }
}

/// The contents of the directory. The oldest file counts as least recently used.
fn scan(dir: &Path) -> io::Result<State> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let id = entry.file_name().to_str().and_then(|name| name.parse::<Digest>().ok());
        let metadata = entry.metadata()?;
        match id {
            Some(id) if metadata.is_file() => found.push((metadata.modified()?, id, metadata.len())),
            _ if metadata.is_file() => fs::remove_file(entry.path())?,
            _ => {}
        }
    }
    found.sort_unstable();
    let mut state = State::default();
    for (_, id, bytes) in found {
        state.bytes += bytes;
        state.worth.used(id, cost(bytes), bytes);
        state.chunks.insert(id, bytes);
    }
    Ok(state)
}
