//! Snapshots that were open on this host since its start, and the chunks they consist of.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rekindle_snapshotter::Digest;
use rekindle_wire::internal::RESTORABLE_MAX;
use rekindle_wire::{FunctionId, SnapshotId};

/// Maximum number of known snapshots: those that are open, and as many that are not.
const MOST: usize = 2 * RESTORABLE_MAX;

#[derive(Debug, Default)]
pub(super) struct RecentSnapshots {
    all: Mutex<HashMap<SnapshotId, RecentSnapshot>>,
    uses: AtomicU64,
}

#[derive(Debug)]
struct RecentSnapshot {
    /// The function that it is of, if any.
    function: Option<FunctionId>,
    chunks: BTreeSet<Digest>,
    /// Sequence number of the last use; greater than that of every earlier use.
    used: u64,
}

impl RecentSnapshots {
    fn next(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn opened(&self, id: &SnapshotId, function: Option<FunctionId>, chunks: BTreeSet<Digest>) {
        let used = self.next();
        let opened = RecentSnapshot { function, chunks, used };
        let mut all = self.all.lock();
        all.insert(id.clone(), opened);
        if all.len() > MOST {
            let oldest = all.iter().min_by_key(|(_, opened)| opened.used);
            if let Some(id) = oldest.map(|(id, _)| id.clone()) {
                all.remove(&id);
            }
        }
    }

    pub(super) fn used(&self, id: &SnapshotId) {
        let used = self.next();
        if let Some(opened) = self.all.lock().get_mut(id) {
            opened.used = used;
        }
    }

    /// Returns the known snapshots of a function.
    pub(super) fn of_function(&self, function: &FunctionId) -> Vec<SnapshotId> {
        let all = self.all.lock();
        let of_it = all
            .iter()
            .filter(|(_, opened)| opened.function.as_ref() == Some(function));
        of_it.map(|(id, _)| id.clone()).collect()
    }

    /// Forgets a snapshot. Returns the chunks that no other known snapshot consists of.
    pub(super) fn forget(&self, id: &SnapshotId) -> HashSet<Digest> {
        let mut all = self.all.lock();
        let Some(forgotten) = all.remove(id) else {
            return HashSet::new();
        };
        let mut chunks = HashSet::from_iter(forgotten.chunks);
        for other in all.values() {
            chunks.retain(|chunk| !other.chunks.contains(chunk));
        }
        chunks
    }

    /// Returns at most [`RESTORABLE_MAX`] of the `wanted` snapshots, those used last, sorted by name.
    pub(super) fn latest(&self, wanted: impl Fn(&SnapshotId, &BTreeSet<Digest>) -> bool) -> Vec<SnapshotId> {
        let all = self.all.lock();
        let mut found: Vec<_> = all.iter().filter(|(id, opened)| wanted(id, &opened.chunks)).collect();
        found.sort_unstable_by_key(|(_, opened)| std::cmp::Reverse(opened.used));
        found.truncate(RESTORABLE_MAX);
        let mut ids: Vec<_> = found.into_iter().map(|(id, _)| id.clone()).collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_used_last_are_told_and_what_is_known_is_bounded() {
        let known = RecentSnapshots::default();
        let id = |n: usize| format!("s-{n:05}").parse::<SnapshotId>().unwrap();
        for n in 0..MOST + 10 {
            known.opened(&id(n), None, BTreeSet::new());
            known.used(&id(0));
        }
        let told = known.latest(|_, _| true);
        assert_eq!((told.len(), known.all.lock().len()), (RESTORABLE_MAX, MOST));
        assert!(told.is_sorted() && told.contains(&id(0)) && told.contains(&id(MOST + 9)));
        known.forget(&id(0));
        assert!(!known.latest(|_, _| true).contains(&id(0)));
        assert_eq!(known.latest(|id, _| id.as_str() == "s-00500"), [id(500)]);
    }

    #[test]
    fn with_a_snapshot_go_the_chunks_that_no_other_has() {
        let known = RecentSnapshots::default();
        let id = |n: u32| format!("s-{n}").parse::<SnapshotId>().unwrap();
        let chunk = |n: u8| Digest::of(&[n]);
        let function: FunctionId = "shop".parse().unwrap();
        known.opened(&id(1), Some(function.clone()), BTreeSet::from([chunk(1), chunk(2)]));
        known.opened(&id(2), None, BTreeSet::from([chunk(2), chunk(3)]));
        assert_eq!(known.of_function(&function), [id(1)]);
        assert_eq!(known.forget(&id(1)), HashSet::from([chunk(1)]));
        assert_eq!(known.forget(&id(1)), HashSet::new());
        assert_eq!(known.forget(&id(2)), HashSet::from([chunk(2), chunk(3)]));
    }
}
