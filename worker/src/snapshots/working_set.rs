//! What a snapshot's restores touch until their first answer. Pure.
//!
//! ```text
//! Recording ──3 restores, each adds what it touched──> Known ──3 restores in a row that it does not fit──┐
//!     ^                                                                                                  │
//!     └───────────────────────────────── from nothing ───────────────────────────────────────────────────┘
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use rekindle_pager::PageRef;

/// Restores whose faults are recorded and merged.
const RECORDED: u32 = 3;
/// Restores in a row that must not fit before it is recorded anew.
const MISFITS: u32 = 3;
/// Faults that a restore may take beside the set whatever its size: requests differ.
const SLACK: u64 = 64;

/// The working set of a snapshot on this host.
#[derive(Debug)]
pub(super) struct WorkingSet {
    /// In the order of their first faults.
    order: Vec<PageRef>,
    /// What is mapped ahead in any case.
    always: Vec<PageRef>,
    /// Both, by address, so that neighbours are mapped at once.
    ahead: Arc<[PageRef]>,
    restores: u32,
    misfits: u32,
}

impl WorkingSet {
    /// One that was `stored`, in its order; nothing is known yet if it is empty. `always` is mapped ahead beside it.
    pub(super) fn new(stored: Vec<PageRef>, always: Vec<PageRef>) -> Self {
        let mut set = Self {
            restores: if stored.is_empty() { 0 } else { RECORDED },
            order: stored,
            always,
            ahead: Arc::default(),
            misfits: 0,
        };
        set.sort();
        set
    }

    /// Pages to map before the first instruction, by address.
    pub(super) fn ahead(&self) -> Arc<[PageRef]> {
        Arc::clone(&self.ahead)
    }

    /// Whether what restores touch is to be recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.restores < RECORDED
    }

    /// A restore has taken `faults` until its first answer and, while this is recording, touched these pages in this order.
    /// Answers what is to be stored now, if anything is.
    pub(super) fn record(&mut self, touched: &[PageRef], faults: u64) -> Option<Vec<PageRef>> {
        if !self.is_recording() {
            let fits = faults <= SLACK.max(self.order.len() as u64 / 2);
            self.misfits = if fits { 0 } else { self.misfits + 1 };
            if self.misfits >= MISFITS {
                *self = Self::new(Vec::new(), std::mem::take(&mut self.always));
            }
            return None;
        }
        if touched.is_empty() {
            // One that began before this was recording.
            return None;
        }
        self.restores += 1;
        let known: HashSet<_> = self.order.iter().copied().collect();
        let before = self.order.len();
        self.order.extend(touched.iter().filter(|p| !known.contains(p)));
        self.sort();
        (self.order.len() > before).then(|| self.order.clone())
    }

    fn sort(&mut self) {
        let mut ahead: Vec<_> = self.order.iter().chain(&self.always).copied().collect();
        ahead.sort_unstable();
        ahead.dedup();
        self.ahead = ahead.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(range: std::ops::Range<u64>) -> Vec<PageRef> {
        range.map(|page| PageRef { pid: 501, page }).collect()
    }

    #[test]
    fn three_restores_are_merged_in_the_order_of_their_faults_then_no_more() {
        let mut set = WorkingSet::new(Vec::new(), pages(100..102));
        assert_eq!(*set.ahead(), *pages(100..102));
        let reversed: Vec<_> = pages(1..4).into_iter().rev().collect();
        assert_eq!(set.record(&reversed, 3), Some(reversed.clone()));
        assert_eq!(*set.ahead(), *[pages(1..4), pages(100..102)].concat());
        assert_eq!(set.record(&[], 0), None, "it was not recorded");
        assert_eq!(set.record(&pages(3..6), 3), Some([reversed, pages(4..6)].concat()));
        assert_eq!(set.record(&pages(3..4), 1), None, "nor is this");
        assert_eq!(set.record(&pages(7..8), 1), None, "it was the fourth");
        assert_eq!(*set.ahead(), *[pages(1..6), pages(100..102)].concat());
    }

    #[test]
    fn a_set_that_does_not_fit_any_more_is_recorded_anew() {
        let mut set = WorkingSet::new(pages(0..1000), pages(5000..5001));
        let other = pages(2000..2600);
        for round in 0..2 {
            assert_eq!(set.record(&[], 600), None, "{round}");
        }
        // One that fits in between: it was an odd request.
        assert_eq!(set.record(&[], 10), None);
        for _ in 0..3 {
            assert!(!set.is_recording());
            assert_eq!(set.record(&[], 600), None);
        }
        assert_eq!(
            *set.ahead(),
            *pages(5000..5001),
            "nothing of the old one is mapped ahead"
        );
        assert!(set.is_recording());
        assert_eq!(set.record(&other, 600), Some(other));
    }

    #[test]
    fn a_stored_set_is_used_at_once() {
        let mut set = WorkingSet::new(pages(0..10), Vec::new());
        assert_eq!(set.ahead().len(), 10);
        assert_eq!(set.record(&[], 40), None, "within the slack");
        assert_eq!(set.ahead().len(), 10);
    }
}
