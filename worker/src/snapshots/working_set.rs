//! What a snapshot's restores touch until their first answer. Pure.
//!
//! ```text
//! Recording ──3 restores, each adds what it touched──> Known ──3 restores in a row that it does not fit──┐
//!     ^                                                                                                  │
//!     └───────────────────────────────── from nothing ───────────────────────────────────────────────────┘
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use rekindle_pager::{AheadPage, PageRef};

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
    /// What each restore that was recorded has written.
    written: HashSet<PageRef>,
    /// All of them, by address, so that neighbours are mapped at once.
    ahead: Arc<[AheadPage]>,
    restores: u32,
    misfits: u32,
}

impl WorkingSet {
    /// One that was `stored`, in its order; nothing is known yet if it is empty. `always` is mapped ahead beside it.
    pub(super) fn new(stored: &[AheadPage], always: Vec<PageRef>) -> Self {
        let mut set = Self {
            restores: if stored.is_empty() { 0 } else { RECORDED },
            order: stored.iter().map(|p| p.page).collect(),
            always,
            written: stored.iter().filter(|p| p.written).map(|p| p.page).collect(),
            ahead: Arc::default(),
            misfits: 0,
        };
        set.sort();
        set
    }

    /// Pages to map before the first instruction, by address.
    pub(super) fn ahead(&self) -> Arc<[AheadPage]> {
        Arc::clone(&self.ahead)
    }

    /// Whether what restores touch is to be recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.restores < RECORDED
    }

    /// A restore has taken `faults` until its first answer and, while this is recording, touched these pages in this order, and `written` to
    /// some of all that is known by now. Answers what is to be stored now, in its order, if anything is.
    pub(super) fn record(
        &mut self,
        touched: &[PageRef],
        written: HashSet<PageRef>,
        faults: u64,
    ) -> Option<Vec<AheadPage>> {
        if !self.is_recording() {
            let fits = faults <= SLACK.max(self.order.len() as u64 / 2);
            self.misfits = if fits { 0 } else { self.misfits + 1 };
            if self.misfits >= MISFITS {
                *self = Self::new(&[], std::mem::take(&mut self.always));
            }
            return None;
        }
        if touched.is_empty() {
            // One that began before this was recording.
            return None;
        }
        let before = (self.order.len(), self.written.len());
        if self.restores == 0 {
            self.written = written;
        } else {
            self.written.retain(|page| written.contains(page));
        }
        self.restores += 1;
        let known: HashSet<_> = self.order.iter().copied().collect();
        // Of what is always mapped, only that it is written has to be known.
        let always = self.always.iter().filter(|page| self.written.contains(page));
        let new = touched.iter().chain(always).filter(|page| !known.contains(page));
        self.order.extend(new);
        self.sort();
        let changed = before != (self.order.len(), self.written.len());
        let stored = |page: &PageRef| AheadPage {
            page: *page,
            written: self.written.contains(page),
        };
        changed.then(|| self.order.iter().map(stored).collect())
    }

    fn sort(&mut self) {
        let mut pages: Vec<_> = self.order.iter().chain(&self.always).copied().collect();
        pages.sort_unstable();
        pages.dedup();
        // While it is recorded none is copied: each would be its process's own then, whether that writes to it or not.
        let is_known = !self.is_recording();
        let ahead = pages.into_iter().map(|page| AheadPage {
            page,
            written: is_known && self.written.contains(&page),
        });
        self.ahead = ahead.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(pages: &[PageRef], written: impl Fn(u64) -> bool) -> Vec<AheadPage> {
        let ahead = pages.iter().map(|page| AheadPage {
            page: *page,
            written: written(page.page),
        });
        ahead.collect()
    }

    fn read(pages: &[PageRef]) -> Vec<AheadPage> {
        ahead(pages, |_| false)
    }

    fn none() -> HashSet<PageRef> {
        HashSet::new()
    }

    fn pages(range: std::ops::Range<u64>) -> Vec<PageRef> {
        range.map(|page| PageRef { pid: 501, page }).collect()
    }

    #[test]
    fn three_restores_are_merged_in_the_order_of_their_faults_then_no_more() {
        let mut set = WorkingSet::new(&[], pages(100..102));
        assert_eq!(*set.ahead(), *read(&pages(100..102)));
        let reversed: Vec<_> = pages(1..4).into_iter().rev().collect();
        assert_eq!(set.record(&reversed, none(), 3), Some(read(&reversed)));
        assert_eq!(*set.ahead(), *read(&[pages(1..4), pages(100..102)].concat()));
        assert_eq!(set.record(&[], none(), 0), None, "it was not recorded");
        assert_eq!(
            set.record(&pages(3..6), none(), 3),
            Some(read(&[reversed, pages(4..6)].concat()))
        );
        assert_eq!(set.record(&pages(3..4), none(), 1), None, "nor is this");
        assert_eq!(set.record(&pages(7..8), none(), 1), None, "it was the fourth");
        assert_eq!(*set.ahead(), *read(&[pages(1..6), pages(100..102)].concat()));
    }

    #[test]
    fn a_set_that_does_not_fit_any_more_is_recorded_anew() {
        let mut set = WorkingSet::new(&read(&pages(0..1000)), pages(5000..5001));
        let other = pages(2000..2600);
        for round in 0..2 {
            assert_eq!(set.record(&[], none(), 600), None, "{round}");
        }
        // One that fits in between: it was an odd request.
        assert_eq!(set.record(&[], none(), 10), None);
        for _ in 0..3 {
            assert!(!set.is_recording());
            assert_eq!(set.record(&[], none(), 600), None);
        }
        assert_eq!(
            *set.ahead(),
            *read(&pages(5000..5001)),
            "nothing of the old one is mapped ahead"
        );
        assert!(set.is_recording());
        assert_eq!(set.record(&other, none(), 600), Some(read(&other)));
    }

    #[test]
    fn a_stored_set_is_used_at_once() {
        let mut set = WorkingSet::new(&read(&pages(0..10)), Vec::new());
        assert_eq!(set.ahead().len(), 10);
        assert_eq!(set.record(&[], none(), 40), None, "within the slack");
        assert_eq!(set.ahead().len(), 10);
    }

    #[test]
    fn what_every_restore_has_written_is_copied_ahead_and_what_is_always_mapped_too() {
        let mut set = WorkingSet::new(&[], pages(50..54));
        let written = |ranges: &[std::ops::Range<u64>]| ranges.iter().cloned().flat_map(pages).collect::<HashSet<_>>();
        let stored = set.record(&pages(1..5), written(&[2..4, 51..53]), 4);
        let touched = [pages(1..5), pages(51..53)].concat();
        let first = ahead(&touched, |page| (2..4).contains(&page) || (51..53).contains(&page));
        assert_eq!(stored, Some(first));
        // A page that is new cannot have been written by all.
        let stored = set.record(&pages(2..7), written(&[3..7, 52..54]), 4);
        let all = [touched, pages(5..7)].concat();
        let second = ahead(&all, |page| page == 3 || page == 52);
        assert_eq!(stored, Some(second.clone()));
        assert!(set.ahead().iter().all(|page| !page.written), "it would confirm itself");
        assert_eq!(
            set.record(&pages(1..2), written(&[3..4, 52..53]), 1),
            None,
            "nothing new"
        );
        let mut all = [all, pages(50..54)].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(*set.ahead(), *ahead(&all, |page| page == 3 || page == 52));
        let again = WorkingSet::new(&second, pages(50..54));
        assert_eq!(again.ahead(), set.ahead(), "as it was stored");
    }
}
