//! The workloads, and the timing of each first touch of a page.
#![expect(
    unsafe_code,
    reason = "touches memory by its addresses, each touch once and in order"
)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use rekindle_pager::PAGE;
use serde::{Deserialize, Serialize};

use super::content::first_word;
use super::kinds::Workload;

/// No fault returns faster than this from another thread.
const AT_ONCE_NS: u64 = 1_000;
/// Idle time between bursts.
const IDLE: Duration = Duration::from_millis(5);
/// Pages of a fresh mapping, and of a piece of restored memory that is unmapped.
const FRESH: u64 = 64;
const PIECE: u64 = 16;

/// What the process saw. Histograms are pairs of nanoseconds and counts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Units of work done.
    pub(crate) units: u64,
    /// Working time in seconds, without the idle ones.
    pub(crate) seconds: f64,
    /// First touches of restored pages.
    pub(crate) first_touches: Vec<(u64, u64)>,
    /// First touches that had to wait for the pager: the thread slept.
    pub(crate) waited: Vec<(u64, u64)>,
}

/// Restored memory.
pub(crate) struct Memory {
    base: u64,
    pages: u64,
    /// Whether it holds the content.
    filled: bool,
    touched: Vec<bool>,
    /// Whether any page may be evicted at any time: then each touch is timed.
    watched: bool,
    random: u64,
    seen: Sleeps,
    idle: Duration,
    pub(crate) first_touches: Histogram<u64>,
    pub(crate) waited: Histogram<u64>,
    /// Touches that brought back an evicted page.
    pub(crate) brought: Histogram<u64>,
}

impl Memory {
    /// # Safety
    /// `pages` from `base` on are mapped, writable, and used by nobody else.
    pub(crate) unsafe fn new(base: u64, pages: u64, filled: bool) -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Ok(Self {
            base,
            pages,
            filled,
            touched: vec![false; pages as usize],
            random: 0x2545_F491_4F6C_DD1D,
            watched: false,
            seen: Sleeps::now(),
            idle: Duration::ZERO,
            first_touches: histogram()?,
            waited: histogram()?,
            brought: histogram()?,
        })
    }

    /// Memory with content that may be evicted at any time.
    ///
    /// # Safety
    /// As for [`Memory::new`].
    pub(crate) unsafe fn watched(base: u64, pages: u64) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Self::new(base, pages, true)? };
        Ok(Self {
            watched: true,
            ..memory
        })
    }

    /// Runs until `deadline`.
    pub(crate) fn run(&mut self, workload: Workload, deadline: Instant) -> Result<Seen> {
        let begun = Instant::now();
        let units = match workload {
            Workload::InteractiveBurst => self.interactive_burst(deadline)?,
            Workload::AnonStreamer => self.anon_streamer(deadline)?,
            Workload::RandomTouchHeap => self.random_touch_heap(deadline)?,
            Workload::MmapChurn => mmap_churn(deadline)?,
            Workload::RestoredChurn => self.restored_churn(deadline)?,
        };
        Ok(Seen {
            units,
            seconds: (begun.elapsed() - self.idle).as_secs_f64(),
            ..Seen::default()
        })
    }

    fn number(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn word(&self, index: u64) -> *mut u64 {
        (self.base + index * PAGE) as *mut u64
    }

    /// Touches a page once. The first touch is timed, and the content compared.
    fn touch(&mut self, index: u64, write: bool) -> Result<()> {
        let (at, known) = (self.word(index), index as usize);
        if self.touched[known] && !self.watched {
            // SAFETY: mapped and writable, by `new`.
            unsafe {
                if write {
                    at.write_volatile(index)
                } else {
                    at.read_volatile();
                }
            }
        } else {
            let started = Instant::now();
            // SAFETY: as above; a write goes to the second word, so that the first can be compared.
            unsafe {
                if write {
                    at.add(1).write_volatile(index)
                } else {
                    at.read_volatile();
                }
            }
            let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.touched[known] = true;
            self.first_touches.saturating_record(took);
            if took > AT_ONCE_NS {
                let before = std::mem::replace(&mut self.seen, Sleeps::now());
                if self.seen.sleeps > before.sleeps {
                    self.waited.saturating_record(took);
                }
                if self.seen.brought > before.brought {
                    self.brought.saturating_record(took);
                }
            }
            // SAFETY: as above.
            let found = unsafe { at.read_volatile() };
            ensure!(
                !self.filled || found == first_word(index),
                "page {index} holds {found:#x}"
            );
        }
        Ok(())
    }

    fn interactive_burst(&mut self, deadline: Instant) -> Result<u64> {
        let mut units = 0;
        while Instant::now() < deadline {
            for _ in 0..8 {
                // Objects of 16 KiB, scattered.
                let first = self.number(self.pages / 4) * 4;
                for index in first..first + 4 {
                    let write = self.number(3) == 0;
                    self.touch(index, write)?;
                }
                for _ in 0..256 {
                    let index = first ^ self.number(4);
                    self.touch(index, true)?;
                }
                units += 260;
            }
            let resting = Instant::now();
            std::thread::sleep(IDLE);
            self.idle += resting.elapsed();
            self.seen = Sleeps::now();
        }
        Ok(units)
    }

    fn anon_streamer(&mut self, deadline: Instant) -> Result<u64> {
        let (mut units, mut sum) = (0, 0_u64);
        loop {
            for index in 0..self.pages {
                self.touch(index, index % 4 == 0)?;
                for line in 1..PAGE / 64 {
                    // SAFETY: mapped, by `new`.
                    sum = sum.wrapping_add(unsafe { self.word(index).add(line as usize * 8).read_volatile() });
                }
                units += 1;
                if index % 256 == 255 && Instant::now() >= deadline {
                    std::hint::black_box(sum);
                    return Ok(units);
                }
            }
        }
    }

    fn random_touch_heap(&mut self, deadline: Instant) -> Result<u64> {
        let mut units = 0;
        while Instant::now() < deadline {
            for _ in 0..256 {
                let index = self.number(self.pages);
                let write = self.number(2) == 0;
                self.touch(index, write)?;
            }
            units += 256;
        }
        Ok(units)
    }

    /// Ends early once everything is unmapped.
    fn restored_churn(&mut self, deadline: Instant) -> Result<u64> {
        let mut units = 0;
        for first in (0..self.pages).step_by(PIECE as usize) {
            if Instant::now() >= deadline {
                break;
            }
            for index in first..first + PIECE {
                self.touch(index, index % 2 == 0)?;
            }
            // SAFETY: nothing holds a reference into these pages, and they are not touched again.
            let rc = unsafe { libc::munmap(self.word(first).cast(), (PIECE * PAGE) as usize) };
            ensure!(rc == 0, "munmap: {}", std::io::Error::last_os_error());
            fresh(PIECE)?;
            units += 2 * PIECE;
        }
        Ok(units)
    }
}

fn mmap_churn(deadline: Instant) -> Result<u64> {
    let mut units = 0;
    while Instant::now() < deadline {
        fresh(FRESH)?;
        units += FRESH;
    }
    Ok(units)
}

/// Maps fresh memory, writes to every page of it, and unmaps it.
fn fresh(pages: u64) -> Result<()> {
    let (length, flags) = ((pages * PAGE) as usize, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever there is room.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    ensure!(at != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    for page in 0..pages as usize {
        // SAFETY: just mapped.
        unsafe { at.byte_add(page * PAGE as usize).cast::<u64>().write_volatile(1) };
    }
    // SAFETY: mapped above, and nothing points into it.
    unsafe { libc::munmap(at, length) };
    Ok(())
}

/// What this thread waited for.
#[derive(Debug, Clone, Copy)]
struct Sleeps {
    /// Number of times that it slept.
    sleeps: i64,
    /// Number of pages that the kernel brought for it.
    brought: i64,
}

impl Sleeps {
    fn now() -> Self {
        // SAFETY: a zeroed `rusage` is valid, and the kernel fills it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            Self {
                sleeps: usage.ru_nvcsw,
                brought: usage.ru_majflt,
            }
        }
    }
}
