//! Chunks on this host's disk: one file each, named by the chunk's digest, at most so many bytes together. The chunk
//! longest unused goes first.
//!
//! Only whole chunks whose digest was checked are put in, by rename. What comes out is checked again by the reader
//! (region by region), so a file that rots is noticed. All calls block for as long as the disk does. One process at a
//! time may use a directory.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::digest::Digest;
use crate::pagemap::ChunkRef;

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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    chunks: HashMap<Digest, Kept>,
    bytes: u64,
    /// Counts uses; a chunk's last one says how long ago that was.
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    bytes: u64,
    used: u64,
}

impl ChunkCache {
    /// The cache in `dir`, which is made if absent. Chunks left there by an earlier run are kept, unfinished files
    /// and others' removed.
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

    /// Whether the chunk is in the cache; that may change at any moment.
    pub fn contains(&self, id: &Digest) -> bool {
        self.inner.state.lock().chunks.contains_key(id)
    }

    /// Fill `into` from the chunk, beginning at `offset`. `false` if the chunk is not here (or not so long, or cannot be
    /// read: then it is dropped).
    pub(super) fn read(&self, id: &Digest, offset: u64, into: &mut [u8]) -> bool {
        {
            let mut state = self.inner.state.lock();
            state.clock += 1;
            let now = state.clock;
            let Some(kept) = state.chunks.get_mut(id) else {
                return false;
            };
            kept.used = now;
        }
        match fs::File::open(self.path(id)).and_then(|file| file.read_exact_at(into, offset)) {
            Ok(()) => true,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(chunk = %id, error, "cached chunk cannot be read and is dropped");
                self.remove(id);
                false
            }
        }
    }

    /// Keep a chunk whose digest was checked. A chunk larger than the whole cache is not kept.
    pub(super) fn insert(&self, chunk: ChunkRef, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        if len > self.inner.max_bytes {
            return Ok(());
        }
        let number = self.inner.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.inner.dir.join(format!("tmp-{number}"));
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, self.path(&chunk.id)));
        if written.is_err() {
            // It may not even be there.
            drop(fs::remove_file(&temporary));
            return written;
        }
        let mut state = self.inner.state.lock();
        state.clock += 1;
        let used = state.clock;
        if let Some(before) = state.chunks.insert(chunk.id, Kept { bytes: len, used }) {
            state.bytes -= before.bytes;
        }
        state.bytes += len;
        self.evict(&mut state, Some(&chunk.id));
        Ok(())
    }

    /// Drop a chunk, as it was found corrupt.
    pub(super) fn remove(&self, id: &Digest) {
        let mut state = self.inner.state.lock();
        if let Some(kept) = state.chunks.remove(id) {
            state.bytes -= kept.bytes;
        }
        // If it is not there any more, all the better.
        drop(fs::remove_file(self.path(id)));
    }

    fn evict(&self, state: &mut State, but: Option<&Digest>) {
        while state.bytes > self.inner.max_bytes {
            let candidates = state.chunks.iter().filter(|(id, _)| Some(*id) != but);
            let Some((id, _)) = candidates
                .min_by_key(|(_, kept)| kept.used)
                .map(|(id, kept)| (*id, kept.used))
            else {
                return;
            };
            if let Some(kept) = state.chunks.remove(&id) {
                state.bytes -= kept.bytes;
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

/// What is in the directory, the oldest file as the longest unused.
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
        state.clock += 1;
        state.bytes += bytes;
        state.chunks.insert(
            id,
            Kept {
                bytes,
                used: state.clock,
            },
        );
    }
    Ok(state)
}
