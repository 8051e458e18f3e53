//! Fills pages before they are touched: those named by the handle before the processes run, and the neighbours of
//! touched pages.

use std::sync::atomic::Ordering;
use std::thread;

use crate::PAGE;
use crate::address_map::Origin;
use crate::command::BackgroundFill;
use crate::fill::ZEROS;
use crate::layout::PageRange;
use crate::memory::{FillOutcome, ProcessMemory};
use crate::pin::pin;
use crate::source::{AheadPage, PageLookup, PageRef, PageSource};
use crate::streams;
use crate::thread::PagerThread;

/// Size in pages of the aligned block that is let in with a touched page, as far as no copy is needed. Measured with 1
/// to 64 (docs/decisions/0008-fault-path.md). Beyond 4, the touched page itself is late if function and pager share a
/// core.
const BLOCK: u64 = streams::LEAST;

/// Number of pages from which two threads fill them. Starting a thread takes some 50 us, and filling a page about one.
const SHARED_LEAST: usize = 256;
/// Stack size of the second thread in bytes.
const HELPER_STACK: usize = 64 << 10;

impl PagerThread {
    /// Fills pages around a page that was just filled, within an aligned block, and ahead of it where memory is read
    /// sequentially. Lets in pages of the mapped file that the source holds, and zero pages. Uses no memory except page
    /// tables. Best effort: the remaining pages are filled when touched.
    pub(crate) fn fill_around(&mut self, index: usize, page: u64) {
        if self.is_recording() {
            return;
        }
        let start = page - page % BLOCK;
        let streams = &mut self.memories[index].streams;
        let (next, filled) = match streams.window(page) {
            Some(window) => self.fill_between(index, page + 1, page + window),
            None => {
                let (next, ahead) = self.fill_between(index, page + 1, start + BLOCK);
                (next, ahead + self.fill_between(index, start, page).1)
            }
        };
        self.memories[index].streams.filled(page, next);
        self.reach.stats.around.fetch_add(filled, Ordering::Relaxed);
    }

    /// Fills pages from `at` until `end` or the first page that is not available now. Returns that page and the number
    /// of pages filled.
    fn fill_between(&self, index: usize, mut at: u64, mut end: u64) -> (u64, u64) {
        let mut filled = 0;
        while at < end {
            let (count, outcome) = self.fill_quietly(index, at, end - at);
            match outcome {
                Some(FillOutcome::Pages(n)) => (at, filled) = (at + n, filled + n),
                Some(FillOutcome::AlreadyPresent) => at += 1,
                // The run spans several mappings, and the pages before the end of the first one can be filled.
                Some(FillOutcome::Unmapped) if count > 1 => end = at + count / 2,
                _ => break,
            }
        }
        (at, filled)
    }

    /// Fills pages of one kind from `page` on, at most `limit`, without a copy. Returns the number of pages tried and
    /// the outcome, or `None` if no page is available without a copy.
    fn fill_quietly(&self, index: usize, page: u64, limit: u64) -> (u64, Option<FillOutcome>) {
        let memory = &self.memories[index];
        let run = memory.map.run(page, limit);
        let source = match memory.map.origin(page) {
            Origin::Snapshot(source) => source,
            Origin::Zero => return (run, Some(memory.zero_quietly(page, run))),
            Origin::File(_) => return (run, None),
        };
        let pin = pin();
        let held = |n: u64| {
            let page = source + n;
            self.source.held(PageRef { pid: memory.pid, page }, &pin)
        };
        match held(0) {
            PageLookup::Mapped(bytes) => {
                let count = (bytes.len() as u64 / PAGE).min(run);
                (count, Some(memory.let_in_quietly(page, count)))
            }
            PageLookup::Zero => {
                let count = 1 + (1..run).take_while(|n| held(*n) == PageLookup::Zero).count() as u64;
                (count, Some(memory.zero_quietly(page, count)))
            }
            PageLookup::Bytes(_) | PageLookup::Absent | PageLookup::Settled => (1, None),
        }
    }

    /// Registers the memory in the layout, then fills `pages` as far as the source holds them. Returns how many were
    /// filled, or an error about memory that could not be registered.
    pub(crate) fn prepare(&self, pages: &[AheadPage]) -> Result<u64, String> {
        let mapped = self.layout.mapped.iter().map(|range| (range, true));
        let anonymous = self.layout.anonymous.iter().map(|range| (range, false));
        for (range, of_file) in mapped.chain(anonymous) {
            let memory = self.memories.iter().find(|m| m.pid == range.first.pid);
            let memory = memory.ok_or_else(|| format!("there is no userfaultfd of process {}", range.first.pid))?;
            let (first, pages) = (range.first.page, range.pages);
            let registered = if of_file {
                memory.register_mapped(first, pages)
            } else {
                memory.register_anonymous(first, pages)
            };
            registered.map_err(|e| {
                format!(
                    "cannot watch {pages} pages at {:#x} of process {}: {e}",
                    first * PAGE,
                    range.first.pid
                )
            })?;
        }
        for range in &self.layout.empty {
            let memory = self.memories.iter().find(|m| m.pid == range.first.pid);
            if let Some(Err(e)) = memory.map(|m| m.unregister(range.first.page, range.pages)) {
                // Its page faults then come here and are answered with zero.
                tracing::debug!(page = range.first.page, error = %e, "memory without content stays watched");
            }
        }
        let filled = Filler {
            memories: &self.memories,
            source: &*self.source,
        }
        .fill(pages);
        self.reach.stats.prefetched.fetch_add(filled, Ordering::Relaxed);
        Ok(filled)
    }

    /// Copies pages to their addresses while the process runs. Only pages that still hold the source's page `origin`,
    /// and what follows it, are copied.
    pub(crate) fn fill_behind(&self, pages: PageRange, origin: u64) -> BackgroundFill {
        let mut done = BackgroundFill::default();
        let Some(memory) = self.memories.iter().find(|m| m.pid == pages.first.pid) else {
            return done;
        };
        let mut at = 0;
        while at < pages.pages {
            let (page, source) = (pages.first.page + at, origin + at);
            let run = memory.map.run(page, pages.pages - at);
            if memory.map.origin(page) != Origin::Snapshot(source) {
                at += run;
                continue;
            }
            let pin = pin();
            let wanted = PageRef {
                pid: memory.pid,
                page: source,
            };
            let filled = match self.source.held(wanted, &pin) {
                PageLookup::Bytes(bytes) => memory.copy(page, whole(bytes, run)),
                _ => FillOutcome::Changing,
            };
            at += match filled {
                FillOutcome::Pages(n) => {
                    done.filled += n;
                    n
                }
                FillOutcome::AlreadyPresent | FillOutcome::Unmapped | FillOutcome::ProcessGone => 1,
                // A page fault brings it, or the next attempt.
                FillOutcome::Changing | FillOutcome::NotInFile | FillOutcome::NoMemory | FillOutcome::Refused(_) => {
                    done.left += 1;
                    1
                }
            };
        }
        self.reach.stats.prefetched.fetch_add(done.filled, Ordering::Relaxed);
        done
    }
}

/// Fills pages of processes that are not running.
struct Filler<'a> {
    memories: &'a [ProcessMemory],
    source: &'a dyn PageSource,
}

impl Filler<'_> {
    /// Fills `pages` as far as the source holds them. Returns how many were filled. CRIU and its processes wait
    /// meanwhile and leave a processor idle, so a second thread takes half of a long list.
    fn fill(&self, pages: &[AheadPage]) -> u64 {
        if pages.len() < SHARED_LEAST {
            return self.fill_part(pages);
        }
        let (ours, theirs) = pages.split_at(pages.len() / 2);
        thread::scope(|scope| {
            let helper = thread::Builder::new()
                .name("pager-ahead".to_owned())
                .stack_size(HELPER_STACK);
            match helper.spawn_scoped(scope, || self.fill_part(theirs)) {
                // A helper that panicked has filled some pages, and page faults bring the rest.
                Ok(helper) => self.fill_part(ours) + helper.join().unwrap_or(0),
                Err(_) => self.fill_part(pages),
            }
        })
    }

    /// Fills runs of pages that are consecutive in the list, in the process and in the source, and of which all or
    /// none will be written.
    fn fill_part(&self, pages: &[AheadPage]) -> u64 {
        let mut filled = 0;
        let mut at = 0;
        while at < pages.len() {
            let first = pages[at];
            let run = 1 + pages[at + 1..]
                .iter()
                .zip(1_u64..)
                .take_while(|(p, n)| {
                    p.written == first.written
                        && p.page.pid == first.page.pid
                        && first.page.page.checked_add(*n) == Some(p.page.page)
                })
                .count();
            filled += self.fill_run(first, run as u64);
            at += run;
        }
        filled
    }

    fn fill_run(&self, AheadPage { page: first, written }: AheadPage, count: u64) -> u64 {
        let Some(memory) = self.memories.iter().find(|m| m.pid == first.pid) else {
            return 0;
        };
        let mut filled = 0;
        let mut done = 0;
        while done < count {
            let page = first.page + done;
            let pin = pin();
            // The mapping determines what a mapped page shows, because the origin moves with it.
            let outcome = match memory.map.origin(page) {
                Origin::Snapshot(source) => {
                    let run = memory.map.run(page, count - done);
                    let source = PageRef { page: source, ..first };
                    match self.source.held(source, &pin) {
                        PageLookup::Mapped(bytes) if !written => {
                            memory.let_in(page, (bytes.len() as u64 / PAGE).min(run))
                        }
                        PageLookup::Mapped(bytes) | PageLookup::Bytes(bytes) => memory.copy(page, whole(bytes, run)),
                        // Fresh memory is touched in order to be written.
                        PageLookup::Zero => memory.copy(page, &ZEROS),
                        PageLookup::Absent | PageLookup::Settled => FillOutcome::Unmapped,
                    }
                }
                Origin::Zero | Origin::File(_) => FillOutcome::Unmapped,
            };
            done += match outcome {
                FillOutcome::Pages(n) => {
                    filled += n;
                    n
                }
                FillOutcome::AlreadyPresent | FillOutcome::Unmapped | FillOutcome::NotInFile => 1,
                FillOutcome::Changing | FillOutcome::ProcessGone | FillOutcome::NoMemory | FillOutcome::Refused(_) => {
                    return filled;
                }
            };
        }
        filled
    }
}

/// The first `pages` of these pages, or fewer.
fn whole(bytes: &[u8], pages: u64) -> &[u8] {
    &bytes[..bytes.len().min((pages * PAGE) as usize)]
}
