//! One look at one process: its ledger learns what came back, and what the ledger chooses is evicted slice by slice.

use std::io;
use std::time::Duration;

use super::kernel::RemoteMemory;
use super::policy::{Ledger, ProcessActivity};
use crate::host::pagemap::{PagemapRun, PagemapRuns};

/// Number of pages evicted at once. A request that arrives meanwhile waits no longer than for these.
const SLICE: u64 = 64;

/// Numbers of pages of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VisitOutcome {
    /// Approximate number that came back since the last look.
    pub returned: u64,
    /// Number evicted now.
    pub evicted: u64,
}

/// Evicts what may be evicted of one process, as long as `goes_on` permits the next slice with this many pages. Calls
/// `rest` after each slice. The kernel may have reported what is `untouched`.
///
/// # Errors
/// Returns an error when the process is gone, or the kernel refuses.
pub fn visit(
    memory: &impl RemoteMemory,
    pid: i32,
    ledger: &mut Ledger,
    (usage, untouched): (ProcessActivity, Option<&[PagemapRun]>),
    now: Duration,
    goes_on: impl Fn(u64) -> bool,
    mut rest: impl FnMut(),
) -> io::Result<VisitOutcome> {
    let runs = memory.look(pid)?;
    let returned = ledger.look(now, &runs).pages;
    let going = ledger.choose(now, usage, &runs, untouched);
    if going.is_empty() {
        return Ok(VisitOutcome { returned, evicted: 0 });
    }
    let mut went = PagemapRuns::default();
    for slice in slices(&going) {
        if !goes_on(slice.iter().map(|run| run.pages).sum()) {
            break;
        }
        memory.evict(pid, &slice)?;
        slice.iter().for_each(|run| ledger.evicted(now, run));
        slice.into_iter().for_each(|run| went.add(run));
        rest();
    }
    // Locked pages have stayed, and pages unmapped since must not be counted.
    let evicted = memory.count_evicted(pid, &went.0)?;
    Ok(VisitOutcome { returned, evicted })
}

/// Divides the runs into pieces of [`SLICE`] pages each.
fn slices(runs: &[PagemapRun]) -> Vec<Vec<PagemapRun>> {
    let (mut slices, mut room) = (Vec::<Vec<PagemapRun>>::new(), 0);
    for run in runs {
        let mut left = *run;
        while left.pages > 0 {
            if room == 0 {
                slices.push(Vec::new());
                room = SLICE;
            }
            let pages = left.pages.min(room);
            if let Some(slice) = slices.last_mut() {
                slice.push(PagemapRun { pages, ..left });
            }
            left.first += pages;
            left.pages -= pages;
            room -= pages;
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A process of 1,000 pages, of which the second half is locked.
    #[derive(Default)]
    struct Fake {
        out: RefCell<Vec<PagemapRun>>,
    }

    impl RemoteMemory for Fake {
        fn look(&self, _: i32) -> io::Result<Vec<PagemapRun>> {
            let out = self.out.borrow();
            let is_out = |page| out.iter().any(|r| (r.first..r.first + r.pages).contains(&page));
            let run = |first| PagemapRun {
                first,
                pages: 1,
                present: !is_out(first),
            };
            Ok((0..1_000).map(run).collect())
        }

        fn count_evicted(&self, pid: i32, runs: &[PagemapRun]) -> io::Result<u64> {
            let out = self.look(pid)?.into_iter().filter(|page| !page.present);
            let asked = |page: &PagemapRun| runs.iter().any(|r| (r.first..r.first + r.pages).contains(&page.first));
            Ok(out.filter(asked).count() as u64)
        }

        fn evict(&self, _: i32, runs: &[PagemapRun]) -> io::Result<()> {
            for run in runs {
                let pages = 500_u64.saturating_sub(run.first).min(run.pages);
                self.out.borrow_mut().push(PagemapRun { pages, ..*run });
            }
            Ok(())
        }
    }

    #[test]
    fn pages_go_slice_by_slice_until_the_instance_is_wanted() {
        let (memory, now) = (Fake::default(), Duration::ZERO);
        let mut ledger = Ledger::new(Duration::from_secs(30));
        let (asked, rests) = (Cell::new(0), Cell::new(0));
        let once = |pages| {
            assert_eq!(pages, SLICE);
            asked.replace(asked.get() + 1) == 0
        };
        let first = visit(
            &memory,
            7,
            &mut ledger,
            (ProcessActivity::Parked, None),
            now,
            once,
            || {
                rests.set(rests.get() + 1);
            },
        );
        let expected = VisitOutcome {
            returned: 0,
            evicted: SLICE,
        };
        assert_eq!((first.unwrap(), asked.get(), rests.get()), (expected, 2, 1));
        let then = visit(
            &memory,
            7,
            &mut ledger,
            (ProcessActivity::Parked, None),
            now,
            |_| true,
            || {},
        )
        .unwrap();
        // Locked pages stay.
        assert_eq!(then.evicted, 500 - SLICE);
        let last = visit(
            &memory,
            7,
            &mut ledger,
            (ProcessActivity::Parked, None),
            now,
            |_| true,
            || {},
        )
        .unwrap();
        assert_eq!(last.evicted, 0);
    }

    #[test]
    fn slices_hold_all_pages_in_order() {
        let run = |first, pages| PagemapRun {
            first,
            pages,
            present: true,
        };
        let slices = slices(&[run(0, 10), run(100, 80)]);
        assert_eq!(slices, [vec![run(0, 10), run(100, 54)], vec![run(154, 26)]]);
    }
}
