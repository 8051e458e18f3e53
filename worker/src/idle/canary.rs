//! Measures how long a fault on an evicted page takes. The kernel serves such faults without notice, so the worker
//! tries it on pages of its own.

use std::time::{Duration, Instant};

use memmap2::MmapMut;
use nix::sys::resource::{UsageWho, getrusage};
use rekindle_pager::PAGE;

use super::kernel::evict;
use crate::host::pagemap::PagemapRun;

const PAGES: usize = 4;

/// The pages.
pub struct Canary(MmapMut);

impl Canary {
    /// Fills the pages with data that compresses to about half, like programs' memory.
    ///
    /// # Errors
    /// Returns an error when there is no memory for them.
    pub fn new() -> std::io::Result<Self> {
        let mut pages = MmapMut::map_anon(PAGES * PAGE as usize)?;
        for (n, word) in pages.chunks_exact_mut(8).enumerate() {
            let hash = blake3::hash(&(n as u64 / 2).to_le_bytes());
            word.copy_from_slice(&hash.as_bytes()[..8]);
        }
        Ok(Self(pages))
    }

    /// Evicts the pages and touches them. Returns the duration of each touch that had to wait.
    pub fn measure_faults(&self) -> Vec<Duration> {
        let own = PagemapRun {
            first: self.0.as_ptr() as u64 / PAGE,
            pages: PAGES as u64,
            present: true,
        };
        if evict(std::process::id().cast_signed(), &[own]).is_err() {
            return Vec::new();
        }
        let touch = |page: usize| {
            let (before, started) = (major_faults(), Instant::now());
            std::hint::black_box(self.0[page * PAGE as usize]);
            let took = started.elapsed();
            (major_faults() > before).then_some(took)
        };
        (0..PAGES).filter_map(touch).collect()
    }
}

/// Returns the calling thread's number of faults that had to bring in a page.
fn major_faults() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.major_page_faults())
}
