//! Snapshots that no new instance begins as.

use std::collections::{HashSet, VecDeque};

use rekindle_wire::SnapshotId;

/// Maximum number of retired snapshots remembered.
const RETIRED_MAX: usize = 10_000;

/// Snapshots that few new instances begin as, since no alias names their versions, or none at all. Workers need not
/// keep them open.
#[derive(Debug, Default)]
pub(crate) struct RetiredSnapshots {
    all: HashSet<SnapshotId>,
    /// The same ids, oldest first.
    order: VecDeque<SnapshotId>,
}

impl RetiredSnapshots {
    pub(super) fn add(&mut self, snapshot: Option<&SnapshotId>) {
        let Some(snapshot) = snapshot.filter(|id| !self.all.contains(*id)) else {
            return;
        };
        if self.order.len() >= RETIRED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        self.all.insert(snapshot.clone());
        self.order.push_back(snapshot.clone());
    }

    pub(super) fn remove(&mut self, snapshot: &SnapshotId) {
        if self.all.remove(snapshot) {
            self.order.retain(|id| id != snapshot);
        }
    }

    pub(crate) fn has(&self, snapshot: &SnapshotId) -> bool {
        self.all.contains(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_snapshots_that_are_remembered_have_a_bound() {
        let mut retired = RetiredSnapshots::default();
        let id = |n: usize| format!("s-{n}").parse::<SnapshotId>().unwrap();
        (0..RETIRED_MAX + 5).for_each(|n| retired.add(Some(&id(n))));
        assert!(!retired.has(&id(4)) && retired.has(&id(5)) && retired.has(&id(RETIRED_MAX + 4)));
        assert_eq!((retired.all.len(), retired.order.len()), (RETIRED_MAX, RETIRED_MAX));
    }
}
