//! The snapshots open on this host: opened once, kept while used and for a while after, within a memory limit.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rekindle_snapshotter::{Digest, Region, RegionIndex, RegionReader, Store};
use rekindle_wire::{FunctionId, SnapshotId};
use tokio::sync::Semaphore;

use super::error::SnapshotError;
use super::known::RecentSnapshots;
use super::memory_fs::MemoryFs;
use super::open_snapshot::{MemoryTier, OpenSnapshot};
use super::originals::LayerPlaces;
use super::tier::{TemplateUse, Tier};
use crate::host::start_limiter::StartLimiter;

/// Maximum number of chunks, over all templates, that are being fetched or wait in memory to be decoded while nobody
/// waits for them.
const FETCHED_AT_ONCE: usize = 16;

/// The snapshots open on this host.
pub struct Snapshots {
    pub(super) store: Store,
    pub(super) reader: Arc<RegionReader>,
    pub(super) dir: PathBuf,
    pub(super) layer_places: LayerPlaces,
    pub(super) memory: MemoryFs,
    pub(super) openings: AtomicU64,
    pub(super) tier: Arc<Tier>,
    pub(super) known: RecentSnapshots,
    /// What new snapshots need not store again.
    index: Arc<RegionIndex>,
    /// The starts that the filling of templates gives way to.
    pub(super) starts: Arc<StartLimiter>,
    /// Bounds the fetching of chunks that nobody waits for.
    pub(super) fetching: Arc<Semaphore>,
    pub(super) refused_working_sets: Arc<AtomicU64>,
    exchanged: AtomicU64,
    /// Whether snapshots are compiled into restore programs.
    pub(super) compiles: bool,
}

impl Snapshots {
    /// Creates it with no snapshot open. Images go below `dir`, and layers are found by `layer_places`. Templates and
    /// images take at most `limit_bytes` of `memory` together, except for a moment. Must be called within a runtime,
    /// where a task enforces the limit.
    pub fn new(
        store: Store,
        reader: Arc<RegionReader>,
        dir: &Path,
        layer_places: LayerPlaces,
        memory: MemoryFs,
        limit_bytes: u64,
        starts: Arc<StartLimiter>,
    ) -> Self {
        Self {
            store,
            reader,
            dir: dir.to_owned(),
            layer_places,
            memory,
            openings: AtomicU64::new(0),
            tier: Tier::start(limit_bytes),
            known: RecentSnapshots::default(),
            index: Arc::default(),
            starts,
            fetching: Arc::new(Semaphore::new(FETCHED_AT_ONCE)),
            refused_working_sets: Arc::default(),
            exchanged: AtomicU64::new(0),
            compiles: false,
        }
    }

    /// Compiles snapshots into restore programs, or does not.
    #[must_use]
    pub fn compiling(self, compiles: bool) -> Self {
        Self { compiles, ..self }
    }

    /// Has this index forget what only snapshots had that are forgotten here.
    #[must_use]
    pub fn indexed_by(self, index: Arc<RegionIndex>) -> Self {
        Self { index, ..self }
    }

    /// Returns the number of working sets that were damaged or belonged to another snapshot.
    pub fn refused_working_sets(&self) -> u64 {
        self.refused_working_sets.load(Ordering::Relaxed)
    }

    /// Returns how often a snapshot's manifest was not the one that the scheduler knows.
    pub fn exchanged(&self) -> u64 {
        self.exchanged.load(Ordering::Relaxed)
    }

    /// Checks that a snapshot with this manifest is the one that was ordered.
    ///
    /// # Errors
    /// Returns an error, and counts it, when the snapshot is another one.
    #[expect(clippy::result_large_err, reason = "once for each order")]
    pub fn compare(&self, id: &SnapshotId, found: Digest, ordered: Option<&str>) -> Result<(), SnapshotError> {
        match ordered.filter(|ordered| *ordered != found.to_string()) {
            None => Ok(()),
            Some(ordered) => {
                self.exchanged.fetch_add(1, Ordering::Relaxed);
                Err(SnapshotError::Exchanged {
                    snapshot: id.clone(),
                    found,
                    ordered: ordered.to_owned(),
                })
            }
        }
    }

    /// Returns how much memory snapshots take, and what was evicted.
    pub fn usage(&self) -> TemplateUse {
        self.tier.usage()
    }

    /// Returns the reader of regions.
    pub fn reader(&self) -> &RegionReader {
        &self.reader
    }

    /// Opens a snapshot, once for all callers, if its manifest has the digest that was `ordered`. Also returns where
    /// its memory was.
    ///
    /// # Errors
    /// Returns an error when the snapshot cannot be read, is another one or does not verify. The next call tries again.
    pub async fn open(
        &self,
        id: &SnapshotId,
        uid: u32,
        writes_root: bool,
        ordered: Option<&str>,
    ) -> Result<(Arc<OpenSnapshot>, MemoryTier), SnapshotError> {
        let cell = self.tier.cell(id);
        let was_open = cell.initialized();
        let snapshot = Arc::clone(
            cell.get_or_try_init(|| self.load(id, uid, writes_root, ordered))
                .await?,
        );
        // It may have been opened for an order without a digest.
        self.compare(id, snapshot.snapshot.digest, ordered)?;
        if snapshot.uid != uid {
            return Err(SnapshotError::User {
                snapshot: id.clone(),
                of: snapshot.uid,
                wanted: uid,
            });
        }
        self.tier.used(&snapshot);
        self.known.used(id);
        let found_in = if was_open {
            MemoryTier::Template
        } else {
            snapshot.found_in
        };
        Ok((snapshot, found_in))
    }

    /// Evicts the memory of templates whose instances have been idle for long (`idle`, by snapshot), as far as their
    /// chunks are on this host's disk. Blocks.
    pub fn take_idle(&self, after: Duration, idle: &HashMap<SnapshotId, Duration>) {
        let is_cached = |region: &Region| region.chunks().all(|chunk| self.reader.is_cached(&chunk.id));
        self.tier.take_idle(after, |id| idle.get(id).copied(), is_cached);
    }

    /// Forgets a snapshot that was deleted, replaced or found broken. Instances that use it keep it until they end.
    /// Regions that no other has are then stored again.
    pub fn forget(&self, id: &SnapshotId) {
        self.tier.forget(id);
        self.index.forget(&self.known.forget(id));
    }

    /// Forgets all snapshots of a function that was deleted, in the same way. Nothing of them is stored afterwards: the
    /// call waits for stores in progress. Blocks.
    pub fn forget_function(&self, function: &FunctionId) {
        for snapshot in self.tier.of_function(function) {
            self.forget(&snapshot.id);
            drop(snapshot.storing.blocking_lock());
        }
        // Those that were closed for lack of room.
        for id in self.known.of_function(function) {
            self.forget(&id);
        }
    }

    /// Returns the open snapshots, at most [`RESTORABLE_MAX`](rekindle_wire::internal::RESTORABLE_MAX), those used
    /// last, sorted by name.
    pub fn open_ids(&self) -> Vec<SnapshotId> {
        let open = self.tier.open_ids();
        self.known.latest(|id, _| open.contains(id))
    }

    /// Returns snapshots that were open, no longer are, and have all chunks in the disk's cache. Limit and order are
    /// the same.
    pub fn cached_ids(&self) -> Vec<SnapshotId> {
        let open = self.tier.open_ids();
        let cached = |chunk: &Digest| self.reader.is_cached(chunk);
        self.known
            .latest(|id, chunks| !open.contains(id) && chunks.iter().all(cached))
    }
}
