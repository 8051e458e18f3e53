//! The first tier of a host's snapshot memory: templates and images in memory, within a limit. The next tiers are the
//! chunk cache on disk and the store.
//!
//! The greedy-dual policy decides what is evicted first, by how long a restore would wait for it and by its size:
//!
//! | what | cost of having it again |
//! |---|---|
//! | the rest of a template, a hole at a time | its chunks are read and decompressed, while nobody waits |
//! | the working set of a template, a hole at a time | the same, and the next restore waits |
//! | the snapshot as a whole, if no instance uses it | round trips to the store, and its images are edited again |
//!
//! What nobody has touched for long is evicted by the same holes before memory runs short: see [`going`].
//!
//! Holes are punched under running instances too: pages that they touch come back by fault.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_snapshotter::{GreedyDual, Region};
use rekindle_wire::{FunctionId, SnapshotId};
use tokio::sync::OnceCell;

use super::level::ByteBudget;
use super::open_snapshot::OpenSnapshot;
use super::template::Pages;

/// Bytes evicted at once, for which pagers must stop looking.
const HOLE: u64 = 4 << 20;
/// Minimum size assumed for any part, in bytes.
const LEAST: u64 = 1 << 20;
/// Rate at which chunks on disk are read, checked and decompressed, in bytes a second.
const REFILL: u64 = 500 << 20;
/// How long a restore waits for the first page of its working set if that page is only on disk.
const FIRST_PAGE: Duration = Duration::from_millis(2);
/// How long it takes to open a snapshot that is only in the store: two round trips, and its images.
const OPENING: Duration = Duration::from_millis(80);

/// A part that can be evicted by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum EvictablePart {
    Of(Pages),
    Whole,
}

impl EvictablePart {
    const ALL: [Self; 3] = [Self::Of(Pages::Rest), Self::Of(Pages::WorkingSet), Self::Whole];

    /// Returns how long it would take to have the part again.
    fn cost(self, bytes: u64) -> Duration {
        let refill = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / REFILL);
        match self {
            Self::Of(Pages::Rest) => refill,
            Self::Of(Pages::WorkingSet) => FIRST_PAGE + refill,
            Self::Whole => OPENING,
        }
    }
}

/// Multiples of the idle time after which an instance's own written pages are evicted. After the first, a template with
/// idle instances loses all but its working set. After the second it loses everything: the next request reads what it
/// touches from disk, fault by fault.
const RESTS: (u32, u32) = (10, 60);

/// Returns what is evicted of a template that nobody has used for `idle`, when written pages are evicted after `after`.
fn going(idle: Duration, after: Duration) -> &'static [Pages] {
    if after.is_zero() || idle < after * RESTS.0 {
        &[]
    } else if idle < after * RESTS.1 {
        &[Pages::Rest]
    } else {
        &[Pages::Rest, Pages::WorkingSet]
    }
}

/// Use of the memory for snapshots. Counters start with the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateUse {
    /// Bytes that templates and images take.
    pub bytes: u64,
    /// Maximum number of these bytes.
    pub limit_bytes: u64,
    /// Number of open snapshots.
    pub open: u64,
    /// Bytes evicted from templates outside working sets.
    pub rest_bytes: u64,
    /// Bytes of working sets evicted.
    pub working_set_bytes: u64,
    /// Bytes evicted from templates because nobody had used them for long.
    pub idle_bytes: u64,
    /// Number of snapshots closed for lack of room.
    pub closed: u64,
    /// Number of times that the filling of a template stopped for lack of room.
    pub refused: u64,
}

#[derive(Default)]
struct Counts {
    rest_bytes: AtomicU64,
    working_set_bytes: AtomicU64,
    idle_bytes: AtomicU64,
    closed: AtomicU64,
    refused: AtomicU64,
}

type SnapshotCell = Arc<OnceCell<Arc<OpenSnapshot>>>;

/// The open snapshots and their worth.
pub(super) struct Tier {
    level: Arc<ByteBudget>,
    open: Mutex<HashMap<SnapshotId, SnapshotCell>>,
    worth: Mutex<GreedyDual<(SnapshotId, EvictablePart)>>,
    /// Held by whoever makes room.
    making_room: Mutex<()>,
    counts: Counts,
}

impl Tier {
    /// Creates an empty tier, which enforces its limit as long as it lives.
    pub(super) fn start(limit_bytes: u64) -> Arc<Self> {
        let level = ByteBudget::new(limit_bytes);
        let tier = Arc::new(Self {
            level: Arc::clone(&level),
            open: Mutex::default(),
            worth: Mutex::default(),
            making_room: Mutex::default(),
            counts: Counts::default(),
        });
        tokio::spawn(keep_to_limit(Arc::downgrade(&tier), level));
        tier
    }

    pub(super) fn level(&self) -> &Arc<ByteBudget> {
        &self.level
    }

    /// Returns the cell that holds the snapshot, or will hold it once it is open.
    pub(super) fn cell(&self, id: &SnapshotId) -> SnapshotCell {
        Arc::clone(self.open.lock().entry(id.clone()).or_default())
    }

    /// Records that a restore uses the snapshot.
    pub(super) fn used(&self, snapshot: &OpenSnapshot) {
        *snapshot.restored.lock() = Instant::now();
        let mut worth = self.worth.lock();
        for part in EvictablePart::ALL {
            let bytes = match part {
                EvictablePart::Of(pages) => snapshot.template.there(pages),
                EvictablePart::Whole => snapshot.images_charge.bytes() + snapshot.template.bytes(),
            };
            // A part that is hardly filled yet will grow.
            let bytes = bytes.max(LEAST);
            worth.used((snapshot.id.clone(), part), part.cost(bytes), bytes);
        }
    }

    /// Forgets a snapshot. Its users keep it.
    pub(super) fn forget(&self, id: &SnapshotId) {
        let forgotten = self.open.lock().remove(id);
        if let Some(snapshot) = forgotten.as_ref().and_then(|cell| cell.get()) {
            snapshot.forgotten.cancel();
        }
        let mut worth = self.worth.lock();
        for part in EvictablePart::ALL {
            worth.forget(&(id.clone(), part));
        }
    }

    /// Returns whether a snapshot is open and was not forgotten.
    pub(super) fn is_open(&self, id: &SnapshotId) -> bool {
        self.open.lock().contains_key(id)
    }

    /// Returns the ids of the open snapshots.
    pub(super) fn open_ids(&self) -> HashSet<SnapshotId> {
        let open = self.open.lock();
        let open = open.iter().filter(|(_, cell)| cell.initialized());
        open.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the open snapshots of a function.
    pub(super) fn of_function(&self, function: &FunctionId) -> Vec<Arc<OpenSnapshot>> {
        let open = self.open.lock();
        let open = open.values().filter_map(|cell| cell.get());
        open.filter(|snapshot| snapshot.is_of(function)).cloned().collect()
    }

    pub(super) fn usage(&self) -> TemplateUse {
        let open = self.open.lock().values().filter(|cell| cell.initialized()).count();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TemplateUse {
            bytes: self.level.bytes(),
            limit_bytes: self.level.limit(),
            open: open as u64,
            rest_bytes: count(&self.counts.rest_bytes),
            working_set_bytes: count(&self.counts.working_set_bytes),
            idle_bytes: count(&self.counts.idle_bytes),
            closed: count(&self.counts.closed),
            refused: count(&self.counts.refused),
        }
    }

    /// Makes room to fill `bytes` more of a snapshot's template while nobody waits for them. Only parts that are worth
    /// less are evicted for it. Returns whether there is room. Blocks.
    pub(super) fn make_room(&self, id: &SnapshotId, bytes: u64) -> bool {
        let _alone = self.making_room.lock();
        if !self.open.lock().contains_key(id) {
            // The snapshot was closed: what is filled now would be thrown away.
            return false;
        }
        while self.level.excess(bytes) > 0 {
            if !self.give_way(Some((id, bytes))) {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        true
    }

    /// Enforces the limit as far as possible. Blocks.
    fn trim(&self) {
        let _alone = self.making_room.lock();
        while self.level.excess(0) > 0 && self.give_way(None) {}
    }

    /// Evicts what nobody has used for long, in regions that `may_go` accepts as available again here. `idle` returns
    /// how long the instances of a snapshot have been idle. Blocks.
    pub(super) fn take_idle(
        &self,
        after: Duration,
        idle: impl Fn(&SnapshotId) -> Option<Duration>,
        may_go: impl Fn(&Region) -> bool,
    ) {
        let cells = self.open.lock();
        let open: Vec<_> = cells.values().filter_map(|cell| cell.get().cloned()).collect();
        drop(cells);
        for snapshot in open {
            let since_restore = snapshot.restored.lock().elapsed();
            let rests = idle(&snapshot.id).map_or(since_restore, |idle| idle.min(since_restore));
            for pages in going(rests, after) {
                self.take_all(&snapshot, *pages, &may_go);
            }
        }
    }

    /// Evicts all present pages of this kind, a hole at a time.
    fn take_all(&self, snapshot: &OpenSnapshot, pages: Pages, may_go: &dyn Fn(&Region) -> bool) {
        let there = snapshot.template.there(pages);
        if there == 0 {
            return;
        }
        let _alone = self.making_room.lock();
        // Evicts no more than was present: pages that are touched meanwhile come back.
        let mut bytes = 0;
        for _ in 0..there.div_ceil(HOLE) {
            match snapshot.template.take_back(pages, HOLE, may_go) {
                0 => break,
                taken => bytes += taken,
            }
        }
        self.counts.idle_bytes.fetch_add(bytes, Ordering::Relaxed);
        tracing::debug!(
            snapshot = %snapshot.id, ?pages, there, bytes,
            "taken back since nobody uses it, as far as its chunks are on this disk"
        );
    }

    /// Evicts a hole of the part worth least, or closes a snapshot. For a newcomer, only evicts what is worth less than
    /// the given bytes of its rest. Returns `false` if there is nothing to evict.
    fn give_way(&self, newcomer: Option<(&SnapshotId, u64)>) -> bool {
        let open: Vec<_> = self
            .open
            .lock()
            .values()
            .filter_map(|cell| cell.get().cloned())
            .collect();
        let parts = open.iter().flat_map(|snapshot| {
            let holes = [Pages::Rest, Pages::WorkingSet].into_iter();
            let holes = holes
                .filter(|pages| snapshot.template.there(*pages) > 0)
                .map(EvictablePart::Of);
            // One reference is the map's, the other that of this list.
            let unused = (Arc::strong_count(snapshot) == 2).then_some(EvictablePart::Whole);
            holes.chain(unused).map(|part| (snapshot.id.clone(), part))
        });
        let parts: Vec<_> = parts.collect();
        let mut worth = self.worth.lock();
        let candidates = parts.iter().filter(|(id, _)| newcomer.is_none_or(|(own, _)| own != id));
        let Some(least) = worth.least(candidates) else {
            return false;
        };
        if let Some((_, bytes)) = newcomer
            && !worth.would_outlive(least, EvictablePart::Of(Pages::Rest).cost(bytes), bytes)
        {
            return false;
        }
        worth.gone(least);
        let (id, part) = least;
        let EvictablePart::Of(pages) = *part else {
            drop(worth);
            self.forget(id);
            self.counts.closed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(snapshot = %id, "closed for want of room");
            return true;
        };
        drop(worth);
        let Some(snapshot) = open.iter().find(|snapshot| snapshot.id == *id) else {
            return false;
        };
        let wanted = self.level.excess(newcomer.map_or(0, |(_, bytes)| bytes)).min(HOLE);
        let taken = snapshot.template.take_back(pages, wanted, &|_| true);
        tracing::debug!(snapshot = %id, ?pages, taken, "taken back for want of room");
        let counter = match pages {
            Pages::Rest => &self.counts.rest_bytes,
            Pages::WorkingSet => &self.counts.working_set_bytes,
        };
        counter.fetch_add(taken, Ordering::Relaxed);
        taken > 0
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.level.over.notify_one();
    }
}

async fn keep_to_limit(tier: Weak<Tier>, level: Arc<ByteBudget>) {
    loop {
        level.over.notified().await;
        let Some(tier) = tier.upgrade() else { return };
        // It fails only in a shutdown.
        let _ = tokio::task::spawn_blocking(move || tier.trim()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_nobody_uses_the_working_set_goes_last() {
        let (after, minutes) = (Duration::from_secs(30), |m: u64| Duration::from_secs(60 * m));
        assert_eq!(going(minutes(4), after), &[]);
        assert_eq!(going(minutes(5), after), &[Pages::Rest]);
        assert_eq!(going(minutes(29), after), &[Pages::Rest]);
        assert_eq!(going(minutes(30), after), &[Pages::Rest, Pages::WorkingSet]);
        assert_eq!(going(minutes(600), Duration::ZERO), &[]);
    }
}
