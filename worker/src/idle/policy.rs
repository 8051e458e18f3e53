//! Decides which pages of one process's own memory to evict. Pure; the caller supplies the time.
//!
//! Few kernels tell cheaply which pages of another process were touched, and those by regions ([`super::damon`]). So
//! eviction itself is the sample. A block is evicted, and its presence at the next look tells whether it was missed. A
//! missed block is left alone, each time twice as long. Others are never looked at again. The number of blocks tried at
//! once follows from how many of the last were missed.
//!
//! ```text
//!          rested                        touched
//! there ──────────► evicted ──────────────────────► there, rests twice as long if it was out for a short while only
//! ```

use std::collections::HashMap;
use std::time::Duration;

use crate::host::pagemap::{PagemapRun, PagemapRuns};

/// Pages that are evicted and observed together: 64 KiB.
pub const BLOCK: u64 = 16;
/// Number of blocks of a process in use evicted at once: minimum, maximum and initial value.
const PACE: (usize, usize, usize) = (4, 4_096, 64);
/// Maximum rest of a block, as a multiple of a new block's.
const RESTS_MOST: u32 = 64;

/// How a process is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessActivity {
    /// Frozen: it touches nothing until somebody needs all of it.
    Parked,
    /// It runs, and may touch anything.
    Warm,
}

/// What came back since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReturnedPages {
    /// Number of blocks of which something came back.
    pub blocks: u64,
    /// Approximate number of pages.
    pub pages: u64,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    /// When it was evicted; `None` while it is present.
    out: Option<Duration>,
    /// It is not tried before this time.
    rests_until: Duration,
    /// How long it rests when it comes back.
    patience: Duration,
    /// Number of its pages in memory at the last look.
    present: u32,
}

/// What is known of a process's memory.
#[derive(Debug)]
pub struct Ledger {
    /// How long a block rests at first.
    rest: Duration,
    blocks: HashMap<u64, Block>,
    pace: usize,
    /// Number of blocks evicted since the last look.
    tried: u64,
}

impl Ledger {
    /// Creates a ledger for a new process. A block is tried once it was present for `rest`.
    #[must_use]
    pub fn new(rest: Duration) -> Self {
        Self {
            rest,
            blocks: HashMap::new(),
            pace: PACE.2,
            tried: 0,
        }
    }

    /// Takes in the state of its memory at `now`: all present or evicted runs, by address.
    pub fn look(&mut self, now: Duration, runs: &[PagemapRun]) -> ReturnedPages {
        let mut seen: HashMap<u64, u32> = HashMap::with_capacity(self.blocks.len());
        for run in runs {
            for (block, pages) in blocks(run) {
                *seen.entry(block).or_default() += if run.present { pages as u32 } else { 0 };
            }
        }
        self.blocks.retain(|block, _| seen.contains_key(block));
        let (mut returned, most) = (ReturnedPages::default(), self.rest * RESTS_MOST);
        for (block, present) in seen {
            let known = self.blocks.entry(block).or_insert(Block {
                out: None,
                rests_until: now + self.rest,
                patience: self.rest,
                present,
            });
            let before = std::mem::replace(&mut known.present, present);
            let Some(since) = known.out.filter(|_| present > before) else {
                continue;
            };
            // It was right to evict a block that was out for long.
            known.patience = if now.saturating_sub(since) > known.patience * 2 {
                self.rest
            } else {
                (known.patience * 2).min(most)
            };
            known.out = None;
            known.rests_until = now + known.patience;
            returned.blocks += 1;
            returned.pages += u64::from(present - before);
        }
        let tried = std::mem::take(&mut self.tried);
        if returned.blocks * 2 > tried {
            self.pace = (self.pace / 2).max(PACE.0);
        } else if tried > 0 && returned.blocks * 4 <= tried {
            self.pace = (self.pace * 2).min(PACE.1);
        }
        returned
    }

    /// Returns the number of pages in memory at the last look.
    #[must_use]
    pub fn present(&self) -> u64 {
        self.blocks.values().map(|block| u64::from(block.present)).sum()
    }

    /// Chooses what to evict now of what was last looked at, beginning with blocks that were never missed. Of memory in
    /// use, it only chooses what the kernel reports as `untouched`, by address, if it reports anything.
    #[must_use]
    pub fn choose(
        &self,
        now: Duration,
        usage: ProcessActivity,
        runs: &[PagemapRun],
        untouched: Option<&[PagemapRun]>,
    ) -> Vec<PagemapRun> {
        let there = self.blocks.iter().filter(|(_, block)| block.present > 0);
        let chosen: Vec<u64> = match usage {
            ProcessActivity::Parked => there.map(|(at, _)| *at).collect(),
            ProcessActivity::Warm => {
                // Pages that came in while the rest of their block was out are as new as that is.
                let rested = there.filter(|(_, block)| block.out.is_none() && block.rests_until <= now);
                let rested = rested.filter(|(at, _)| untouched.is_none_or(|runs| holds(runs, **at)));
                // The order is not by address: memory in use lies together, and a sample must not consist of it alone.
                let mut rested: Vec<_> = rested.map(|(at, b)| (b.patience, scattered(*at), *at)).collect();
                rested.sort_unstable();
                rested.into_iter().take(self.pace).map(|(_, _, at)| at).collect()
            }
        };
        let chosen: std::collections::HashSet<u64> = chosen.into_iter().collect();
        let mut going = PagemapRuns::default();
        for run in runs.iter().filter(|run| run.present) {
            for (block, pages) in blocks(run) {
                if !chosen.contains(&block) {
                    continue;
                }
                let first = (block * BLOCK).max(run.first);
                going.add(PagemapRun {
                    first,
                    pages,
                    present: true,
                });
            }
        }
        going.0
    }

    /// Records that these pages were evicted, or that the kernel was asked to evict them.
    pub fn evicted(&mut self, now: Duration, run: &PagemapRun) {
        for (block, _) in blocks(run) {
            if let Some(block) = self.blocks.get_mut(&block) {
                block.out = Some(now);
                block.present = 0;
                self.tried += 1;
            }
        }
    }
}

/// Returns a number unrelated to those of neighbours.
fn scattered(block: u64) -> u64 {
    block
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
        .wrapping_mul(0xD134_2543_DE82_EF95)
}

/// Returns whether a block lies in one of these runs, which are by address.
fn holds(runs: &[PagemapRun], block: u64) -> bool {
    let (first, end) = (block * BLOCK, (block + 1) * BLOCK);
    let behind = runs.partition_point(|run| run.first <= first);
    behind
        .checked_sub(1)
        .is_some_and(|at| runs[at].first + runs[at].pages >= end)
}

/// Returns the blocks that a run spans, with the number of its pages in each.
fn blocks(run: &PagemapRun) -> impl Iterator<Item = (u64, u64)> {
    let (first, end) = (run.first, run.first + run.pages);
    (first / BLOCK..end.div_ceil(BLOCK)).map(move |block| {
        let (from, to) = ((block * BLOCK).max(first), ((block + 1) * BLOCK).min(end));
        (block, to - from)
    })
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
