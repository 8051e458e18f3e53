//! Answers page faults.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::PAGE;
use crate::address_map::Origin;
use crate::command::LostPage;
use crate::fetching::PendingFault;
use crate::memory::FillOutcome;
use crate::pin::pin;
use crate::source::{PageLookup, PageRef};
use crate::thread::PagerThread;
use crate::userfault::Fault;

/// Maximum number of pages recorded as the working set: 1 GiB.
const RECORD_MAX: usize = 262_144;
pub(crate) static ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
/// Number of retries of a fault, about a millisecond apart, while the kernel has no memory for its page.
const NO_MEMORY_RETRIES: u32 = 2_000;
/// Number of retries for a page that the source has but the mapped file lacks.
const MISSED_RETRIES: u32 = 8;

impl PagerThread {
    /// Answers a fault, or postpones it.
    pub(crate) fn answer(&mut self, asked: PendingFault) {
        if self.lost {
            return;
        }
        let Some(index) = self.index(asked.memory) else { return };
        let (fault, attempts) = (asked.fault, asked.attempts);
        let memory = &self.memories[index];
        let filled = match memory.map.origin(fault.page) {
            Origin::Zero => self.give_zero(index, fault),
            Origin::File(source) => {
                let wanted = PageRef {
                    pid: memory.pid,
                    page: source,
                };
                match self.source.file_page(wanted) {
                    Ok(bytes) => memory.copy(fault.page, &bytes),
                    Err(e) => return self.lose_page(index, fault.page, &e.message),
                }
            }
            Origin::Snapshot(source) => {
                let wanted = PageRef {
                    pid: memory.pid,
                    page: source,
                };
                match self.give(index, fault, wanted) {
                    Some(filled) => filled,
                    None => {
                        self.reach.stats.fetched.fetch_add(1, Ordering::Relaxed);
                        tracing::debug!(
                            pid = wanted.pid,
                            address = format_args!("{:#x}", fault.page * PAGE),
                            write = fault.write,
                            "a touched page is fetched"
                        );
                        return self.fetching.order(wanted, asked);
                    }
                }
            }
        };
        let again = PendingFault {
            attempts: attempts + 1,
            ..asked
        };
        match filled {
            FillOutcome::Changing => self.pending.push_back(asked),
            FillOutcome::NoMemory if attempts < NO_MEMORY_RETRIES => self.pending.push_back(again),
            FillOutcome::NotInFile if attempts < MISSED_RETRIES => self.pending.push_back(again),
            FillOutcome::NoMemory => self.lose_page(index, fault.page, "the host has no memory for it"),
            FillOutcome::NotInFile => self.lose_page(index, fault.page, "the template loses it again and again"),
            FillOutcome::Refused(errno) => {
                let why = format!("the kernel refuses it: {}", io::Error::from_raw_os_error(errno));
                self.lose_page(index, fault.page, &why);
            }
            FillOutcome::Pages(_) => {
                let took = asked.since.elapsed();
                self.reach.stats.latency.record(took);
                if !self.has_answered {
                    self.has_answered = true;
                    self.reach.stats.marks.lock().first_fault = Some((asked.since, took));
                }
                self.fill_around(index, fault.page);
            }
            FillOutcome::AlreadyPresent | FillOutcome::Unmapped | FillOutcome::ProcessGone => {}
        }
    }

    /// Answers the faults whose pages were fetched. A page that was evicted meanwhile is fetched again, a limited
    /// number of times.
    pub(crate) fn answer_fetched(&mut self) {
        while let Some(fetched) = self.fetching.next() {
            let (wanted, pending) = (fetched.wanted, fetched.pending);
            let message = match fetched.outcome {
                Ok(()) if pending.brought < MISSED_RETRIES => {
                    self.answer(PendingFault {
                        brought: pending.brought + 1,
                        ..pending
                    });
                    continue;
                }
                Ok(()) => "it was brought again and again, and is not here".to_owned(),
                Err(message) => message,
            };
            self.lose(LostPage {
                pid: wanted.pid,
                page: wanted.page,
                message,
            });
        }
    }

    fn lose_page(&mut self, index: usize, page: u64, why: &str) {
        self.lose(LostPage {
            pid: self.memories[index].pid,
            page,
            message: why.to_owned(),
        });
    }

    fn give_zero(&self, index: usize, fault: Fault) -> FillOutcome {
        let memory = &self.memories[index];
        // As for pages with contents: a write must not cause a second fault.
        let filled = match fault.write {
            true => memory.copy(fault.page, &ZEROS),
            false => memory.zero(fault.page, 1),
        };
        if let FillOutcome::Pages(n) = filled {
            self.reach.stats.zeroed.fetch_add(n, Ordering::Relaxed);
        }
        filled
    }

    /// Supplies the snapshot's page `wanted`. `None` if it is absent.
    fn give(&mut self, index: usize, fault: Fault, wanted: PageRef) -> Option<FillOutcome> {
        let (memory, stats) = (&self.memories[index], &self.reach.stats);
        let pin = pin();
        let filled = match self.source.held(wanted, &pin) {
            PageLookup::Zero => self.give_zero(index, fault),
            // A page that is about to be written becomes private to the process at once, which avoids a second fault.
            PageLookup::Mapped(bytes) if !fault.write => {
                debug_assert!(!bytes.is_empty());
                let filled = memory.let_in(fault.page, 1);
                count(&stats.let_in, filled)
            }
            PageLookup::Mapped(bytes) | PageLookup::Bytes(bytes) => {
                let filled = memory.copy(fault.page, &bytes[..PAGE as usize]);
                count(&stats.copied, filled)
            }
            PageLookup::Settled => memory.look_again(fault.page),
            PageLookup::Absent => return None,
        };
        if matches!(filled, FillOutcome::Pages(_)) {
            self.record(wanted);
        }
        Some(filled)
    }

    /// Whether touched pages are being recorded.
    pub(crate) fn is_recording(&self) -> bool {
        self.reach.record.on.load(Ordering::Relaxed)
    }

    fn record(&self, page: PageRef) {
        if self.is_recording() {
            let mut pages = self.reach.record.pages.lock();
            if pages.len() < RECORD_MAX {
                pages.push(page);
            }
        }
    }
}

fn count(counter: &AtomicU64, filled: FillOutcome) -> FillOutcome {
    if let FillOutcome::Pages(n) = filled {
        counter.fetch_add(n, Ordering::Relaxed);
    }
    filled
}
