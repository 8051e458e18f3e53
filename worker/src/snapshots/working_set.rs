//! The pages that a snapshot's restores touch until their first response. Pure.
//!
//! ```text
//! Recording ──3 restores, each adds what it touched──> Known ──3 restores in a row that it does not fit──┐
//!     ^                                                                                                  │
//!     └────────────────────────── from nothing, as the next recording ───────────────────────────────────┘
//! ```
//!
//! All hosts record one set: a host that stores its additions merges what others have stored since. A later recording
//! replaces an earlier one.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use rekindle_pager::{AheadPage, PageRef};
use rekindle_snapshotter::working_set::{RESTORES, Recording};

/// Number of restores in a row that must not fit before the set is recorded again.
const MISFITS: u32 = 3;
/// Faults outside the set that a restore may take whatever the set's size, because requests differ.
const SLACK: u64 = 64;

/// A working set in its stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredRecording {
    pub recording: Recording,
    /// In the order of their first faults.
    pub pages: Vec<AheadPage>,
}

/// A restore that has begun.
#[derive(Debug, Clone, Copy)]
pub struct WorkingSetUse {
    /// Whether its touched pages are recorded.
    pub records: bool,
    /// Number of the recording at that time.
    pub(super) number: u32,
}

/// The working set of a snapshot as this host knows it.
#[derive(Debug)]
pub(super) struct WorkingSet {
    /// In the order of their first faults.
    order: Vec<PageRef>,
    /// Pages that are mapped ahead in any case.
    always: Vec<PageRef>,
    /// Pages that every recorded restore has written.
    written: HashSet<PageRef>,
    /// All of these pages, by address, so that neighbours are mapped at once.
    ahead: Arc<[AheadPage]>,
    /// The recording, and the restores known to be in it.
    recording: Recording,
    /// Number of restores of this host in it that are not stored.
    unsent: u32,
    misfits: u32,
}

impl WorkingSet {
    /// Creates the set from what is `stored`, if anything is. The pages of `always` are mapped ahead as well.
    pub(super) fn new(stored: Option<&StoredRecording>, always: Vec<PageRef>) -> Self {
        let mut set = Self::empty(0, always);
        if let Some(stored) = stored {
            set.adopt(stored);
        }
        set.sort();
        set
    }

    fn empty(number: u32, always: Vec<PageRef>) -> Self {
        Self {
            order: Vec::new(),
            always,
            written: HashSet::new(),
            ahead: Arc::default(),
            recording: Recording { number, restores: 0 },
            unsent: 0,
            misfits: 0,
        }
    }

    fn adopt(&mut self, stored: &StoredRecording) {
        self.recording = stored.recording;
        self.order = stored.pages.iter().map(|p| p.page).collect();
        self.written = written_of(stored).collect();
        self.unsent = 0;
        self.misfits = 0;
    }

    /// Returns the pages to map before the first instruction, by address.
    pub(super) fn ahead(&self) -> Arc<[AheadPage]> {
        Arc::clone(&self.ahead)
    }

    pub(super) fn begin(&self) -> WorkingSetUse {
        WorkingSetUse {
            records: self.is_recording(),
            number: self.recording.number,
        }
    }

    /// Returns all pages in the set.
    pub(super) fn pages(&self) -> HashSet<PageRef> {
        self.order.iter().copied().collect()
    }

    fn is_recording(&self) -> bool {
        self.recording.restores < RESTORES
    }

    /// Records a restore that has taken `faults` up to its first response. If it was recorded, it has touched these
    /// pages in this order, and has `written` to some of all pages known by now. Returns whether there is something to
    /// store.
    pub(super) fn record(
        &mut self,
        begun: WorkingSetUse,
        touched: &[PageRef],
        written: HashSet<PageRef>,
        faults: u64,
    ) -> bool {
        // What was mapped ahead for another recording says nothing about this one.
        if begun.number == self.recording.number {
            match (begun.records, self.is_recording()) {
                (true, true) => self.add(touched, written),
                (false, false) => self.judge(faults),
                // It began when less was known.
                _ => {}
            }
        }
        self.unsent > 0
    }

    fn add(&mut self, touched: &[PageRef], written: HashSet<PageRef>) {
        if self.recording.restores == 0 {
            self.written = written;
        } else {
            self.written.retain(|page| written.contains(page));
        }
        self.recording.restores += 1;
        self.unsent += 1;
        // For pages that are always mapped, the only thing to learn is that they are written.
        let always = self.always.iter().filter(|page| self.written.contains(page));
        let new: Vec<_> = touched.iter().chain(always).copied().collect();
        self.extend(new);
        self.sort();
    }

    fn judge(&mut self, faults: u64) {
        let fits = faults <= SLACK.max(self.order.len() as u64 / 2);
        self.misfits = if fits { 0 } else { self.misfits + 1 };
        if self.misfits >= MISFITS {
            let number = self.recording.number.saturating_add(1);
            *self = Self::empty(number, std::mem::take(&mut self.always));
            self.sort();
        }
    }

    /// Merges what is stored by now. Returns what to store in its place, and how many restores of this host it covers.
    /// Returns `None` if a later recording has replaced this one, or all is stored.
    pub(super) fn merge(&mut self, stored: Option<&StoredRecording>) -> Option<(StoredRecording, u32)> {
        if let Some(stored) = stored {
            match stored.recording.number.cmp(&self.recording.number) {
                Ordering::Less => {}
                Ordering::Greater => {
                    self.adopt(stored);
                    self.sort();
                }
                Ordering::Equal => {
                    let theirs: HashSet<_> = written_of(stored).collect();
                    self.written.retain(|page| theirs.contains(page));
                    let counted = stored.recording.restores.saturating_add(self.unsent);
                    self.recording.restores = counted.max(self.recording.restores);
                    let ours = std::mem::take(&mut self.order);
                    self.extend(stored.pages.iter().map(|p| p.page));
                    self.extend(ours);
                    self.sort();
                }
            }
        }
        if self.unsent == 0 {
            return None;
        }
        let page = |page: &PageRef| AheadPage {
            page: *page,
            written: self.written.contains(page),
        };
        let merged = StoredRecording {
            recording: self.recording,
            pages: self.order.iter().map(page).collect(),
        };
        Some((merged, self.unsent))
    }

    /// Records that this many restores of this host, of this recording, are stored or never will be.
    pub(super) fn sent(&mut self, number: u32, restores: u32) {
        if number == self.recording.number {
            self.unsent = self.unsent.saturating_sub(restores);
        }
    }

    /// Returns whether there is something to store.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Appends the pages that are not known yet.
    fn extend(&mut self, pages: impl IntoIterator<Item = PageRef>) {
        let mut known: HashSet<_> = self.order.iter().copied().collect();
        self.order.extend(pages.into_iter().filter(|page| known.insert(*page)));
    }

    fn sort(&mut self) {
        let mut pages: Vec<_> = self.order.iter().chain(&self.always).copied().collect();
        pages.sort_unstable();
        pages.dedup();
        // Pages that the first restore has written are copied from then on. Every later restore has its own copy,
        // whether it writes to the page or not, so nothing more is learnt of these pages.
        let ahead = pages.into_iter().map(|page| AheadPage {
            page,
            written: self.written.contains(&page),
        });
        self.ahead = ahead.collect();
    }
}

fn written_of(stored: &StoredRecording) -> impl Iterator<Item = PageRef> {
    stored.pages.iter().filter(|p| p.written).map(|p| p.page)
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

    fn stored(number: u32, restores: u32, pages: Vec<AheadPage>) -> StoredRecording {
        let recording = Recording { number, restores };
        StoredRecording { recording, pages }
    }

    /// Returns what a host stores if it is the only one.
    fn alone(set: &mut WorkingSet, before: &mut Option<StoredRecording>) -> StoredRecording {
        let (merged, restores) = set.merge(before.as_ref()).unwrap();
        set.sent(merged.recording.number, restores);
        assert!(!set.has_unsent() && set.merge(before.as_ref()).is_none());
        *before = Some(merged.clone());
        merged
    }

    /// Runs a restore that ends before another begins.
    fn restore(set: &mut WorkingSet, touched: &[PageRef], written: HashSet<PageRef>, faults: u64) -> bool {
        let begun = set.begin();
        set.record(begun, touched, written, faults)
    }

    #[test]
    fn three_restores_are_merged_in_the_order_of_their_faults_then_no_more() {
        let mut set = WorkingSet::new(None, pages(100..102));
        let mut store = None;
        assert_eq!(*set.ahead(), *read(&pages(100..102)));
        let reversed: Vec<_> = pages(1..4).into_iter().rev().collect();
        assert!(restore(&mut set, &reversed, none(), 3));
        assert_eq!(alone(&mut set, &mut store), stored(0, 1, read(&reversed)));
        assert_eq!(*set.ahead(), *read(&[pages(1..4), pages(100..102)].concat()));
        let unknown = WorkingSetUse {
            records: false,
            ..set.begin()
        };
        assert!(!set.record(unknown, &[], none(), 0), "it was not recorded");
        let fourth = set.begin();
        assert!(restore(&mut set, &pages(3..6), none(), 3));
        let both = read(&[reversed, pages(4..6)].concat());
        assert_eq!(alone(&mut set, &mut store), stored(0, 2, both.clone()));
        assert!(restore(&mut set, &[], none(), 1), "nothing new, and one more");
        assert_eq!(alone(&mut set, &mut store), stored(0, 3, both));
        assert!(!set.record(fourth, &pages(7..8), none(), 1), "it was the fourth");
        assert_eq!(*set.ahead(), *read(&[pages(1..6), pages(100..102)].concat()));
    }

    #[test]
    fn a_set_that_does_not_fit_any_more_is_recorded_anew_and_replaces_it() {
        let mut store = Some(stored(2, 3, read(&pages(0..1000))));
        let mut set = WorkingSet::new(store.as_ref(), pages(5000..5001));
        let other = pages(2000..2600);
        for round in 0..2 {
            assert!(!restore(&mut set, &[], none(), 600), "{round}");
        }
        // One that fits comes in between: the misfits were odd requests.
        assert!(!restore(&mut set, &[], none(), 10));
        for _ in 0..3 {
            assert!(!set.is_recording());
            assert!(!restore(&mut set, &[], none(), 600));
        }
        assert_eq!(
            *set.ahead(),
            *read(&pages(5000..5001)),
            "nothing of the old one is mapped ahead"
        );
        assert!(set.is_recording());
        assert!(restore(&mut set, &other, none(), 600));
        assert_eq!(alone(&mut set, &mut store), stored(3, 1, read(&other)));
    }

    #[test]
    fn restores_that_began_when_less_was_known_neither_misfit_nor_count_twice() {
        let mut set = WorkingSet::new(None, Vec::new());
        let all = pages(0..700);
        // Twenty at once, and three of them are recorded.
        let begun: Vec<_> = (0..20).map(|_| set.begin()).collect();
        for one in begun {
            set.record(one, &all, none(), 700);
        }
        assert_eq!(set.begin().number, 0);
        assert_eq!(set.ahead().len(), 700);
        // Pages that were mapped ahead for a restore are missing in what it touched, once the set is recorded again.
        let late = set.begin();
        for _ in 0..MISFITS {
            restore(&mut set, &[], none(), 2000);
        }
        let before = WorkingSetUse { records: true, ..late };
        assert!(!set.record(before, &pages(900..901), none(), 1));
        assert!(set.ahead().is_empty() && set.begin().records);
        assert_eq!(set.begin().number, 1);
    }

    #[test]
    fn what_could_not_be_stored_is_stored_by_and_by() {
        let mut set = WorkingSet::new(None, Vec::new());
        for n in 0..2 {
            assert!(restore(&mut set, &pages(n..n + 1), none(), 1));
        }
        let (_, lost) = set.merge(None).unwrap();
        assert_eq!(lost, 2);
        assert!(restore(&mut set, &pages(2..3), none(), 1));
        let (two, sent) = set.merge(None).unwrap();
        assert_eq!((two.recording.restores, two.pages.len(), sent), (3, 3, 3));
        // It is complete, and still not stored.
        assert!(restore(&mut set, &[], none(), 0));
        set.sent(0, sent);
        assert!(!restore(&mut set, &[], none(), 0));
    }

    #[test]
    fn a_stored_set_is_used_at_once_and_goes_on_where_it_was() {
        let mut whole = WorkingSet::new(Some(&stored(0, 3, read(&pages(0..10)))), Vec::new());
        assert_eq!(whole.ahead().len(), 10);
        assert!(!restore(&mut whole, &[], none(), 40), "within the slack");
        assert_eq!(whole.ahead().len(), 10);
        let mut store = Some(stored(0, 2, read(&pages(0..10))));
        let mut begun = WorkingSet::new(store.as_ref(), Vec::new());
        assert_eq!(begun.ahead().len(), 10);
        assert!(begun.is_recording());
        assert!(restore(&mut begun, &pages(10..11), none(), 1));
        assert!(!begun.is_recording());
        assert_eq!(alone(&mut begun, &mut store), stored(0, 3, read(&pages(0..11))));
    }

    #[test]
    fn hosts_that_record_at_once_come_to_one_set() {
        let wrote = |pages: std::ops::Range<u64>| self::pages(pages).into_iter().collect::<HashSet<_>>();
        let (mut a, mut b) = (WorkingSet::new(None, Vec::new()), WorkingSet::new(None, Vec::new()));
        let mut store = None;
        assert!(restore(&mut a, &pages(0..4), wrote(0..3), 4));
        assert!(restore(&mut b, &pages(2..6), wrote(2..5), 4));
        alone(&mut a, &mut store);
        let both = ahead(&pages(0..6), |page| page == 2);
        assert_eq!(alone(&mut b, &mut store), stored(0, 2, both));
        // The first has two by its own count only; with the other's it is complete.
        assert!(restore(&mut a, &pages(0..7), wrote(0..7), 1));
        assert!(a.is_recording());
        let all = ahead(&pages(0..7), |page| page == 2);
        assert_eq!(alone(&mut a, &mut store), stored(0, 3, all.clone()));
        assert!(!a.is_recording());
        assert_eq!(*a.ahead(), *all);
        // Another host has found that it does not fit: what is recorded of the old one is not stored.
        let newer = stored(1, 1, read(&pages(50..60)));
        assert!(restore(&mut b, &pages(7..8), wrote(2..3), 1));
        assert_eq!(b.merge(Some(&newer)), None);
        assert_eq!(*b.ahead(), *read(&pages(50..60)));
        assert!(b.is_recording());
    }

    #[test]
    fn what_every_restore_has_written_is_copied_ahead_and_what_is_always_mapped_too() {
        let mut set = WorkingSet::new(None, pages(50..54));
        let mut store = None;
        let written = |ranges: &[std::ops::Range<u64>]| ranges.iter().cloned().flat_map(pages).collect::<HashSet<_>>();
        assert!(restore(&mut set, &pages(1..5), written(&[2..4, 51..53]), 4));
        let touched = [pages(1..5), pages(51..53)].concat();
        let first = ahead(&touched, |page| (2..4).contains(&page) || (51..53).contains(&page));
        assert_eq!(alone(&mut set, &mut store).pages, first);
        // A page that is new cannot have been written by all.
        assert!(restore(&mut set, &pages(2..7), written(&[3..7, 52..54]), 4));
        let all = [touched, pages(5..7)].concat();
        let second = ahead(&all, |page| page == 3 || page == 52);
        assert_eq!(alone(&mut set, &mut store).pages, second);
        let copied = set
            .ahead()
            .iter()
            .filter(|page| page.written)
            .map(|p| p.page.page)
            .collect::<Vec<_>>();
        assert_eq!(copied, [3, 52], "also while it is recorded");
        assert!(restore(&mut set, &pages(1..2), written(&[3..4, 52..53]), 1));
        let whole = alone(&mut set, &mut store);
        assert_eq!(whole.pages, second);
        let mut all = [all, pages(50..54)].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(*set.ahead(), *ahead(&all, |page| page == 3 || page == 52));
        let again = WorkingSet::new(Some(&whole), pages(50..54));
        assert_eq!(again.ahead(), set.ahead(), "as it was stored");
    }
}
