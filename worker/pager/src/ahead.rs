//! Filling pages before they are touched: what the handle names, before the processes run; and the neighbours of a touched page.

use std::sync::atomic::Ordering;
use std::thread;

use crate::PAGE;
use crate::address_map::Origin;
use crate::fill::ZEROS;
use crate::memory::{Filled, Memory};
use crate::pager::{FilledBehind, PageRange};
use crate::pin::pin;
use crate::source::{AheadPage, Held, PageRef, PageSource};
use crate::streams;
use crate::thread::Thread;

/// Pages of the aligned block of which all that can be had without a copy is let in with a touched page. Measured with 1 to 64
/// (docs/decisions/0008-fault-path.md): beyond 4 the touched page itself comes too late where function and pager share a core.
const BLOCK: u64 = streams::LEAST;

/// From so many pages on two threads fill them: a thread takes some 50 us to start, and a page about one.
const SHARED_LEAST: usize = 256;
/// Bytes of the second one's stack.
const HELPER_STACK: usize = 64 << 10;

impl Thread {
    /// Lets in what lies around a page that was just filled, within an aligned block, and ahead of it where it is read from front to back: of the mapped
    /// file what the source holds, and zeros. Takes no memory but for page tables. Best effort: what is not filled is filled when it is touched.
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

    /// Fills pages from `at` on and before `end`, up to the first that cannot be had now: answers which that is, and how many were filled.
    fn fill_between(&self, index: usize, mut at: u64, mut end: u64) -> (u64, u64) {
        let mut filled = 0;
        while at < end {
            let (count, outcome) = self.fill_quietly(index, at, end - at);
            match outcome {
                Some(Filled::Pages(n)) => (at, filled) = (at + n, filled + n),
                Some(Filled::AlreadyPresent) => at += 1,
                // They are not all of one mapping: those before its end are.
                Some(Filled::Unmapped) if count > 1 => end = at + count / 2,
                _ => break,
            }
        }
        (at, filled)
    }

    /// Fills as much from `page` on, at most `limit`, as is of one kind and can be had without a copy: of how many pages it tried,
    /// and what came of it; `None` if there is nothing to be had so.
    fn fill_quietly(&self, index: usize, page: u64, limit: u64) -> (u64, Option<Filled>) {
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
            Held::Mapped(bytes) => {
                let count = (bytes.len() as u64 / PAGE).min(run);
                (count, Some(memory.let_in_quietly(page, count)))
            }
            Held::Zero => {
                let count = 1 + (1..run).take_while(|n| held(*n) == Held::Zero).count() as u64;
                (count, Some(memory.zero_quietly(page, count)))
            }
            Held::Bytes(_) | Held::Absent | Held::Settled => (1, None),
        }
    }

    /// Registers what the layout says, then fills `pages`, as far as the source holds them: answers how many were. An error
    /// is what could not be registered.
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
                // Its faults come here, then, and are answered with zero.
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

    /// Copies pages to where they belong while the process runs: those that still hold the source's page `origin` and what
    /// follows it.
    pub(crate) fn fill_behind(&self, pages: PageRange, origin: u64) -> FilledBehind {
        let mut done = FilledBehind::default();
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
                Held::Bytes(bytes) => memory.copy(page, whole(bytes, run)),
                _ => Filled::Changing,
            };
            at += match filled {
                Filled::Pages(n) => {
                    done.filled += n;
                    n
                }
                Filled::AlreadyPresent | Filled::Unmapped | Filled::ProcessGone => 1,
                // A fault brings it, or the next attempt.
                Filled::Changing | Filled::NotInFile | Filled::NoMemory | Filled::Refused(_) => {
                    done.left += 1;
                    1
                }
            };
        }
        self.reach.stats.prefetched.fetch_add(done.filled, Ordering::Relaxed);
        done
    }
}

/// Fills pages of processes that do not run.
struct Filler<'a> {
    memories: &'a [Memory],
    source: &'a dyn PageSource,
}

impl Filler<'_> {
    /// Fills `pages`, as far as the source holds them; answers how many were filled. CRIU and its processes wait meanwhile, so that a processor has nothing to
    /// do: half of many pages is another thread's.
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
                // One that panicked has filled some, and faults bring the rest.
                Ok(helper) => self.fill_part(ours) + helper.join().unwrap_or(0),
                Err(_) => self.fill_part(pages),
            }
        })
    }

    /// Fills runs of pages that are consecutive in the list, in the process and in the source, and of which all or none will be written.
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
            // What a mapped page shows is for the mapping to say: it moves with it.
            let outcome = match memory.map.origin(page) {
                Origin::Snapshot(source) => {
                    let run = memory.map.run(page, count - done);
                    let source = PageRef { page: source, ..first };
                    match self.source.held(source, &pin) {
                        Held::Mapped(bytes) if !written => memory.let_in(page, (bytes.len() as u64 / PAGE).min(run)),
                        Held::Mapped(bytes) | Held::Bytes(bytes) => memory.copy(page, whole(bytes, run)),
                        // Fresh memory is touched to be written.
                        Held::Zero => memory.copy(page, &ZEROS),
                        Held::Absent | Held::Settled => Filled::Unmapped,
                    }
                }
                Origin::Zero | Origin::File(_) => Filled::Unmapped,
            };
            done += match outcome {
                Filled::Pages(n) => {
                    filled += n;
                    n
                }
                Filled::AlreadyPresent | Filled::Unmapped | Filled::NotInFile => 1,
                Filled::Changing | Filled::ProcessGone | Filled::NoMemory | Filled::Refused(_) => return filled,
            };
        }
        filled
    }
}

/// At most so many of these pages.
fn whole(bytes: &[u8], pages: u64) -> &[u8] {
    &bytes[..bytes.len().min((pages * PAGE) as usize)]
}
