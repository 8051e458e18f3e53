//! The pages that a migrated instance left behind: received from the source and pushed into the processes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rekindle_pager::{PageRange, PageRef};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::runtime::Handle;

use super::super::WRITTEN;
use super::super::written::WrittenPages;
use crate::instance::{Instance, RunningInstance};

/// Number of pages that arrive while the processes are stopped and are filled in before they run. More would cost more
/// time than they save.
pub(super) const AHEAD: u64 = 1024;
/// How long the transfer of an instance's memory may make no progress.
const STALL_LIMIT: Duration = Duration::from_secs(20);
/// How long an ending instance may take until nothing of it is in use.
const END_LIMIT: Duration = Duration::from_secs(10);
/// How long the pager may take to fill some pages.
const FILL_LIMIT: Duration = Duration::from_secs(10);
/// Interval between checks whether anybody still waits for an instance's memory.
const NEEDED_STILL: Duration = Duration::from_secs(1);
/// How often processes are looked at that move their pages or have forked, and the pause after each look.
const FOLLOWED: u32 = 60;
const FOLLOWED_PAUSE: Duration = Duration::from_millis(500);
/// Number of pages pushed at once. Page faults wait that long, about 100 µs.
const PUSHED: u64 = 128;

/// Receives the source's pages until all are here or nobody needs them. A small part comes while the processes are
/// stopped. The rest comes when they run, since restore and transfer would slow each other down.
pub(super) async fn receive(written: Weak<WrittenPages>) {
    let Some(here) = written.upgrade() else { return };
    let runs_here = here.runs_here();
    if let Err(error) = here.stream(0, AHEAD).await {
        tracing::warn!(%error, "the stream of a migrated instance's first pages ended early");
    }
    drop(here);
    while tokio::time::timeout(NEEDED_STILL, runs_here.notified()).await.is_err() {
        if written.strong_count() == 0 {
            return;
        }
    }
    let mut failures = 0;
    loop {
        let Some(here) = written.upgrade() else { return };
        let Some(first) = here.first_missing(0).filter(|_| !here.is_settled()) else {
            return;
        };
        let streamed = here.stream(first, here.pages()).await;
        if let Err(error) = streamed {
            failures += 1;
            tracing::warn!(%error, failures, "the stream of a migrated instance's pages ended early");
            // A thread that waits for a page requests it itself. The pushing side reports when it has taken too long.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if failures > 100 {
            return;
        }
    }
}

/// Pushes arriving pages into the processes while they run.
pub(super) struct PagePush {
    pub(super) running: Weak<RunningInstance>,
    pub(super) written: Arc<WrittenPages>,
    pub(super) instance: Arc<Instance>,
    pub(super) runtime: Handle,
}

impl PagePush {
    /// Runs until every page is in place, the instance has ended, or nothing makes progress. Returns whether all pages
    /// are in place. Tells the source when it need not keep its pages.
    pub(super) fn all(&self) -> bool {
        let all_is_in = self.try_all();
        if !all_is_in {
            if !self.has_ended() {
                // Pages that cannot be pushed come when they are touched.
                return false;
            }
            // Nothing more is fetched.
            self.written.settle(true);
        }
        if let Err(error) = self.runtime.block_on(self.written.tell_done()) {
            // The source notices by itself, only later.
            tracing::debug!(%error, "the source does not hear that nothing is wanted any more");
        }
        all_is_in
    }

    fn try_all(&self) -> bool {
        let mut waiting: Vec<_> = self.written.runs().collect();
        let mut moved = Instant::now();
        while !waiting.is_empty() {
            let mut left = Vec::new();
            let before: u64 = waiting.iter().map(|(range, _)| range.pages).sum();
            for (range, number) in waiting {
                match self.push(range, number, &mut left) {
                    Some(()) => {}
                    None => return false,
                }
            }
            let after: u64 = left.iter().map(|(range, _)| range.pages).sum();
            waiting = left;
            if after < before {
                moved = Instant::now();
            } else if moved.elapsed() > STALL_LIMIT {
                self.lose();
                return false;
            }
            if self.running.strong_count() == 0 {
                return false;
            }
            if after > 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.written.settle(false);
        self.running.strong_count() > 0
    }

    /// Frees the pages here once nobody can ask for one again. Processes may have moved some before they were in place:
    /// pushes those to where they belong. A process that was forked meanwhile may ask until it ends; if it lives on,
    /// the pages stay.
    pub(super) fn free(&self) {
        if self.follow() {
            self.written.settle(true);
        }
    }

    fn follow(&self) -> bool {
        let mut pushed = Vec::new();
        for _ in 0..FOLLOWED {
            let Some(running) = self.running.upgrade() else {
                return false;
            };
            let Some(pager) = &running.pager else { return false };
            // An error: it has forked.
            if let Ok(maps) = pager.maps(FILL_LIMIT) {
                let moved = self.written.moved(&maps);
                if moved == pushed {
                    return true;
                }
                let push = |(range, source): &(PageRange, u64)| {
                    (0..range.pages).step_by(PUSHED as usize).all(|done| {
                        let first = PageRef {
                            page: range.first.page + done,
                            ..range.first
                        };
                        let pages = PUSHED.min(range.pages - done);
                        let filled = pager.fill(PageRange { first, pages }, source + done, FILL_LIMIT);
                        filled.is_ok_and(|filled| filled.left == 0)
                    })
                };
                if moved.iter().all(push) {
                    pushed = moved;
                    continue;
                }
            }
            drop(running);
            std::thread::sleep(FOLLOWED_PAUSE);
        }
        false
    }

    /// Returns whether nothing of the instance is in use. Waits a while for an instance that is ending.
    fn has_ended(&self) -> bool {
        let begun = Instant::now();
        while self.running.strong_count() > 0 {
            if begun.elapsed() >= END_LIMIT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Pushes the arrived pages of a run. Adds to `left` those that have not arrived or could not be pushed. Returns
    /// `None` when there is nothing to push into.
    fn push(&self, range: PageRange, number: u64, left: &mut Vec<(PageRange, u64)>) -> Option<()> {
        let part = |done: u64, pages: u64| {
            let first = PageRef {
                page: range.first.page + done,
                ..range.first
            };
            (PageRange { first, pages }, number + done)
        };
        let mut done = 0;
        while done < range.pages {
            let ready = self.written.ready_run(number + done, (range.pages - done).min(PUSHED));
            if ready == 0 {
                left.push(part(done, range.pages - done));
                break;
            }
            let (pages, at) = part(done, ready);
            let running = self.running.upgrade()?;
            let origin = pages.first.page | WRITTEN;
            match running.pager.as_ref()?.fill(pages, origin, FILL_LIMIT) {
                Ok(filled) if filled.left > 0 => left.push((pages, at)),
                Ok(_) => {}
                Err(_) => return None,
            }
            done += ready;
        }
        Some(())
    }

    fn lose(&self) {
        let message = format!(
            "{} pages of its memory did not arrive from the host it moved from, so the instance was killed",
            self.written.missing()
        );
        self.instance.kill(ApiError::new(ErrorCode::MigrationLost, message));
    }
}
