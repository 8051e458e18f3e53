//! Where idle memory goes, and how much of it has gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use rekindle_init::causes::chain;

use super::kernel::{self, HostKernel};
use super::settings::IdleSettings;
use super::swap::Swap;
use super::zram::{self, ZramOwner, ZramPaths, ZramUsage};
use crate::host::cgroup::Cgroups;

/// Counts of evictions since the worker's start.
#[derive(Debug, Default)]
pub struct EvictionCounts {
    /// Pages of parked instances.
    pub parked_pages: AtomicU64,
    /// Pages of running instances.
    pub warm_pages: AtomicU64,
    /// Approximate number of pages of running instances that were touched again.
    pub returned_pages: AtomicU64,
    /// Times that nothing was done because memory was short.
    pub pressed: AtomicU64,
    /// Times that nothing was done because the swap was nearly full.
    pub full: AtomicU64,
    /// Processor time, in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Number of processes that the kernel watches now.
    pub watched: AtomicU64,
}

impl EvictionCounts {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// The swap that a worker's evictor fills, and whether the evictor is to stop.
pub struct IdleMemory {
    pub(super) settings: IdleSettings,
    /// The kernel's interface; not used if there is no swap.
    pub(super) host: HostKernel,
    pub(super) swap: RwLock<Swap>,
    /// The evictor's counts.
    pub counts: EvictionCounts,
    stopped: Mutex<bool>,
    stops: Condvar,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

impl IdleMemory {
    /// Removes what a killed worker with control groups below `cgroup_parent` left, and chooses the swap. Logs the
    /// choice. Blocks for some milliseconds.
    pub fn open(settings: IdleSettings, cgroup_parent: &str, cgroups: &Cgroups) -> Self {
        let (places, owner) = (ZramPaths::default(), ZramOwner::of(cgroup_parent));
        match zram::sweep(&places, owner) {
            Ok(0) => {}
            Ok(swept) => tracing::info!(swept, "removed the swap that a killed worker left"),
            Err(e) => tracing::warn!(error = %chain(&e), "the swap that a killed worker left stays"),
        }
        let host = if settings.after.is_zero() {
            Err("idle memory is to stay".to_owned())
        } else if !cgroups.counts_swap() {
            // Otherwise an instance could have any amount of swap beyond its limit.
            Err("the kernel does not count swap by control group (boot with swapaccount=1)".to_owned())
        } else {
            kernel::probe()
        };
        let (host, swap) = match host {
            Ok(host) => (host, Swap::choose(settings.swap, "/proc".as_ref(), &places, owner)),
            Err(why) => (HostKernel::Scans, Swap::Nothing(why)),
        };
        tracing::info!(%swap, "where written pages go that are not touched for a while");
        Self {
            settings,
            host,
            swap: RwLock::new(swap),
            counts: EvictionCounts::default(),
            stopped: Mutex::new(false),
            stops: Condvar::new(),
            thread: Mutex::new(None),
        }
    }

    /// Stops evicting, and gives a swap of the worker's own back. Must be called when the instances are gone. Blocks
    /// until what the swap contains of other processes is in memory again.
    pub fn stop(&self) {
        *self.stopped.lock() = true;
        self.stops.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // If the thread panicked, that was reported already.
            let _ = thread.join();
        }
        let swap = std::mem::replace(&mut *self.swap.write(), Swap::Nothing("the worker stops".to_owned()));
        if let Swap::Own(device) = swap
            && let Err(e) = device.take_down()
        {
            tracing::warn!(error = %chain(&e), "the worker's swap stays until its next start");
        }
    }

    /// Returns where written pages go, in a word: `own_zram`, `host_zram`, `zswap`, `none`.
    pub fn swap_kind(&self) -> &'static str {
        self.swap.read().kind()
    }

    /// Returns how full their zram device is, if they go to one.
    pub fn fill(&self) -> Option<ZramUsage> {
        self.swap.read().fill()
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.lock()
    }

    /// Waits. Returns `false` if it has to stop meanwhile.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.stops.wait_for(&mut stopped, time);
        }
        !*stopped
    }
}
