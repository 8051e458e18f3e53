//! A process in virtual time: it has memory, and touches some of it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const PERIOD: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(30);

struct Process {
    ledger: Ledger,
    now: Duration,
    pages: u64,
    out: BTreeSet<u64>,
    /// What the kernel reports as untouched.
    untouched: Option<Vec<PagemapRun>>,
    /// Number of pages it had to wait for.
    missed: u64,
}

impl Process {
    fn new(pages: u64) -> Self {
        Self {
            ledger: Ledger::new(REST),
            now: Duration::ZERO,
            pages,
            out: BTreeSet::new(),
            untouched: None,
            missed: 0,
        }
    }

    /// What is in memory and what is not, in as few runs as there are.
    fn runs(&self) -> Vec<PagemapRun> {
        let mut runs: Vec<PagemapRun> = Vec::new();
        for first in 0..self.pages {
            let present = !self.out.contains(&first);
            match runs.last_mut() {
                Some(last) if last.present == present => last.pages += 1,
                _ => runs.push(PagemapRun {
                    first,
                    pages: 1,
                    present,
                }),
            }
        }
        runs
    }

    fn touch(&mut self, page: u64) {
        self.missed += u64::from(self.out.remove(&page));
    }

    /// Runs one period. Returns how many pages were evicted.
    fn pass(&mut self, usage: ProcessActivity) -> u64 {
        self.now += PERIOD;
        let runs = self.runs();
        self.ledger.look(self.now, &runs);
        let mut went = 0;
        for run in self.ledger.choose(self.now, usage, &runs, self.untouched.as_deref()) {
            for page in run.first..run.first + run.pages {
                assert!(self.out.insert(page), "page {page} was out already");
            }
            self.ledger.evicted(self.now, &run);
            went += run.pages;
        }
        went
    }
}

#[test]
fn what_a_parked_process_has_goes_at_once() {
    let mut process = Process::new(10_000);
    assert_eq!(process.pass(ProcessActivity::Parked), 10_000);
    assert_eq!(process.pass(ProcessActivity::Parked), 0);
    process.touch(17);
    assert_eq!(process.pass(ProcessActivity::Parked), 1);
}

#[test]
fn what_is_new_rests_before_it_goes() {
    let mut process = Process::new(64);
    for _ in 0..=REST.as_secs() / PERIOD.as_secs() {
        assert_eq!(process.out.len(), 0);
        process.pass(ProcessActivity::Warm);
    }
    assert_eq!(process.out.len(), 64);
}

#[test]
fn what_nobody_touches_goes_faster_and_faster() {
    // 1 GiB: at the first pace it would take an hour and a half.
    let mut process = Process::new(1 << 18);
    let mut passes = 0;
    while process.out.len() < 1 << 18 {
        process.pass(ProcessActivity::Warm);
        passes += 1;
    }
    assert!(passes < 25, "{passes} passes");
}

#[test]
fn what_is_in_use_all_the_time_is_hardly_missed() {
    let mut process = Process::new(4_096);
    let hour = 3_600 / PERIOD.as_secs();
    for _ in 0..hour {
        // A quarter is used within each period.
        (0..1_024).for_each(|page| process.touch(page));
        process.pass(ProcessActivity::Warm);
    }
    assert!(process.out.len() >= 3_072 - 16, "{} are out", process.out.len());
    // Each page is missed after 30, 90, 210, … s: seven times in an hour, not 700 times.
    assert!(process.missed <= 1_024 * 8, "{} missed", process.missed);
}

#[test]
fn what_was_out_for_long_is_tried_again_as_if_it_were_new() {
    let mut process = Process::new(BLOCK);
    let until_out = |process: &mut Process| {
        let since = process.now;
        while process.out.len() < BLOCK as usize {
            process.pass(ProcessActivity::Warm);
        }
        process.now - since
    };
    until_out(&mut process);
    process.touch(0);
    let second = until_out(&mut process);
    process.now += REST * 100;
    process.touch(0);
    let third = until_out(&mut process);
    assert!(second >= REST * 2 && third <= REST + PERIOD * 2, "{second:?} {third:?}");
}

#[test]
fn where_the_kernel_tells_only_what_is_untouched_is_tried() {
    let mut process = Process::new(4_096);
    let used = 1_000..2_000;
    let run = |first, end| PagemapRun {
        first,
        pages: end - first,
        present: true,
    };
    for pass in 0..200 {
        used.clone().for_each(|page| process.touch(page));
        // Nothing is known at first.
        process.untouched = Some(if pass < 10 {
            vec![]
        } else {
            vec![run(0, 1_000), run(2_000, 5_000)]
        });
        process.pass(ProcessActivity::Warm);
        assert!(pass >= 10 || process.out.is_empty());
    }
    assert_eq!(process.missed, 0);
    // Blocks that are partly in use stay.
    let stays = used.end.div_ceil(BLOCK) * BLOCK - used.start / BLOCK * BLOCK;
    assert_eq!(process.out.len() as u64, 4_096 - stays);
    process.untouched = Some(vec![]);
    assert_eq!(
        process.pass(ProcessActivity::Parked),
        stays,
        "a parked one touches nothing"
    );
}

#[test]
fn what_is_unmapped_is_forgotten() {
    let mut process = Process::new(1_000);
    process.pass(ProcessActivity::Warm);
    process.pages = 10;
    process.pass(ProcessActivity::Warm);
    assert_eq!(process.ledger.blocks.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is touched when, only present pages are evicted (`pass` asserts it), and never more than the pace
    /// allows. Pages that are not touched for long enough are gone.
    #[test]
    fn any_process_loses_what_it_does_not_use(touches in prop::collection::vec((0_u64..40, 0_u64..2_000), 0..400)) {
        let mut process = Process::new(2_000);
        for step in 0..40 {
            for (_, page) in touches.iter().filter(|(at, _)| *at == step) {
                process.touch(*page);
            }
            let pace = process.ledger.pace as u64;
            let went = process.pass(ProcessActivity::Warm);
            prop_assert!(went <= 2 * pace.max(PACE.0 as u64) * BLOCK);
        }
        let longest = REST * RESTS_MOST + PERIOD * 200;
        let end = process.now + longest;
        while process.now < end {
            process.pass(ProcessActivity::Warm);
        }
        prop_assert_eq!(process.out.len(), 2_000);
    }
}
