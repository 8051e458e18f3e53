//! Filling pages: in answer to faults, and before the processes run.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::PAGE;
use crate::address_map::Origin;
use crate::memory::{Fault, Filled};
use crate::pager::LostPage;
use crate::source::{Held, PageRef};
use crate::thread::{Pending, Thread};

/// Pages recorded as working set at most: 1 GiB.
const RECORD_MAX: usize = 262_144;
/// A page of zeros.
static ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
/// How often a fault is tried again, about a millisecond apart, while the kernel has no memory for its page.
const NO_MEMORY_RETRIES: u32 = 2_000;
/// How often a page that the source has is brought again because the mapped file lacks it.
const MISSED_RETRIES: u32 = 8;

impl Thread {
    /// Answers a fault, or puts it off.
    pub(crate) fn answer(&mut self, index: usize, fault: Fault, attempts: u32) {
        if self.lost {
            return;
        }
        let memory = &self.memories[index];
        let filled = match memory.map.origin(fault.page) {
            Origin::Zero => self.give_zero(index, fault),
            Origin::Snapshot(source) => {
                let wanted = PageRef {
                    pid: memory.pid,
                    page: source,
                };
                match self.give(index, fault, wanted) {
                    Ok(filled) => filled,
                    Err(message) => {
                        return self.lose(LostPage {
                            pid: wanted.pid,
                            page: source,
                            message,
                        });
                    }
                }
            }
        };
        let again = Pending {
            memory: index,
            fault,
            attempts: attempts + 1,
        };
        match filled {
            Filled::Changing => self.pending.push_back(Pending { attempts, ..again }),
            Filled::NoMemory if attempts < NO_MEMORY_RETRIES => self.pending.push_back(again),
            Filled::NotInFile if attempts < MISSED_RETRIES => self.pending.push_back(again),
            Filled::NoMemory => self.lose_at(index, fault.page, "the host has no memory for it"),
            Filled::NotInFile => self.lose_at(index, fault.page, "the template loses it again and again"),
            Filled::Refused(errno) => {
                let why = format!("the kernel refuses it: {}", std::io::Error::from_raw_os_error(errno));
                self.lose_at(index, fault.page, &why);
            }
            Filled::Pages(_) | Filled::AlreadyPresent | Filled::Unmapped | Filled::ProcessGone => {}
        }
    }

    fn lose_at(&mut self, index: usize, page: u64, why: &str) {
        self.lose(LostPage {
            pid: self.memories[index].pid,
            page,
            message: why.to_owned(),
        });
    }

    fn give_zero(&self, index: usize, fault: Fault) -> Filled {
        let memory = &self.memories[index];
        // As with the pages that hold something: no second fault for what is written at once.
        let filled = match fault.write {
            true => memory.copy(fault.page, &ZEROS),
            false => memory.zero(fault.page, 1),
        };
        if let Filled::Pages(n) = filled {
            self.reach.stats.zeroed.fetch_add(n, Ordering::Relaxed);
        }
        filled
    }

    /// Gives the snapshot's page `wanted`; an error is why it cannot be had.
    fn give(&mut self, index: usize, fault: Fault, wanted: PageRef) -> Result<Filled, String> {
        if matches!(self.source.held(wanted), Held::Absent) {
            self.reach.stats.fetched.fetch_add(1, Ordering::Relaxed);
            self.source.fetch(wanted).map_err(|e| e.message)?;
        }
        let (memory, stats) = (&self.memories[index], &self.reach.stats);
        let (filled, counter) = match self.source.held(wanted) {
            Held::Zero => {
                let filled = self.give_zero(index, fault);
                if matches!(filled, Filled::Pages(_)) {
                    self.record(wanted);
                }
                return Ok(filled);
            }
            // A page that is about to be written becomes the process's own at once, instead of in a second fault.
            Held::Mapped(bytes) if !fault.write => {
                debug_assert!(!bytes.is_empty());
                (memory.let_in(fault.page, 1), &stats.let_in)
            }
            Held::Mapped(bytes) | Held::Bytes(bytes) => {
                (memory.copy(fault.page, &bytes[..PAGE as usize]), &stats.copied)
            }
            Held::Absent => return Err("the source has no page after bringing it".to_owned()),
        };
        if let Filled::Pages(n) = filled {
            counter.fetch_add(n, Ordering::Relaxed);
            self.record(wanted);
        }
        Ok(filled)
    }

    fn record(&mut self, page: PageRef) {
        let record = &self.reach.record;
        if !record.on.load(Ordering::Relaxed) {
            self.recorded = HashSet::new();
        } else if self.recorded.len() < RECORD_MAX && self.recorded.insert(page) {
            record.pages.lock().push(page);
        }
    }

    /// Registers what the layout says, then fills `pages`, as far as the source holds them: answers how many were. An error
    /// is what could not be registered.
    pub(crate) fn prepare(&self, pages: &[PageRef]) -> Result<u64, String> {
        for range in &self.layout.mapped {
            let memory = self.memories.iter().find(|m| m.pid == range.first.pid);
            let memory = memory.ok_or_else(|| format!("criu sent no userfaultfd for process {}", range.first.pid))?;
            memory.register_mapped(range.first.page, range.pages).map_err(|e| {
                format!(
                    "cannot watch {} pages at {:#x} of process {}: {e}",
                    range.pages,
                    range.first.page * PAGE,
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
        let filled = self.fill_ahead(pages);
        self.reach.stats.prefetched.fetch_add(filled, Ordering::Relaxed);
        Ok(filled)
    }

    /// Fills runs of pages that are consecutive in the list, in the process and in the source.
    fn fill_ahead(&self, pages: &[PageRef]) -> u64 {
        let mut filled = 0;
        let mut at = 0;
        while at < pages.len() {
            let first = pages[at];
            let run = 1 + pages[at + 1..]
                .iter()
                .zip(1_u64..)
                .take_while(|(p, n)| p.pid == first.pid && first.page.checked_add(*n) == Some(p.page))
                .count();
            filled += self.fill_run(first, run as u64);
            at += run;
        }
        filled
    }

    fn fill_run(&self, first: PageRef, count: u64) -> u64 {
        let Some(memory) = self.memories.iter().find(|m| m.pid == first.pid) else {
            return 0;
        };
        let mut filled = 0;
        let mut done = 0;
        while done < count {
            let page = first.page + done;
            // Only what still lies where it lay: the processes have not run yet.
            let untouched = memory.map.origin(page) == Origin::Snapshot(page);
            let outcome = match self.source.held(PageRef { pid: first.pid, page }) {
                Held::Mapped(bytes) if untouched => memory.let_in(page, (bytes.len() as u64 / PAGE).min(count - done)),
                Held::Bytes(bytes) if untouched => {
                    let length = bytes.len().min(((count - done) * PAGE) as usize);
                    memory.copy(page, &bytes[..length])
                }
                // Fresh memory is touched to be written.
                Held::Zero if untouched => memory.copy(page, &ZEROS),
                _ => Filled::Unmapped,
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
