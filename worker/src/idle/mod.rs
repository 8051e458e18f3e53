//! Idle memory goes away: what an instance has not touched for a while is evicted without its help and comes back by fault
//! (docs/decisions/0019-idle-memory.md). What it has written goes to a compressed swap, clean pages go from the templates.
//!
//! ```text
//!  evictor ──each period──> look (kernel) ──> choose (policy) ──> evict in slices (kernel) ──> swap: the host's, or zram
//!     ▲                                                                   │
//!     └── what came back was missed: it is left alone, longer each time ──┘
//! ```

pub mod canary;
pub mod damon;
mod evictor;
pub mod kernel;
pub mod pagemap;
pub mod policy;
pub mod swap;
pub mod throttle;
pub mod visit;
mod watcher;
pub mod zram;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use rekindle_init::causes::chain;

use crate::config::WorkerConfig;
use crate::host::cgroup::Cgroups;
use crate::worker::Worker;
use kernel::Host;
use swap::{IdleSwap, Swap};
pub use watcher::IdleWatch;
use zram::{Fill, Owner, Places};

/// What an operator says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleSettings {
    /// Where written pages go.
    pub swap: IdleSwap,
    /// How long a page must not have been touched; zero for never to evict any.
    pub after: Duration,
    /// Who tells what was not.
    pub watch: IdleWatch,
}

impl Default for IdleSettings {
    fn default() -> Self {
        Self {
            swap: IdleSwap::default(),
            after: Duration::from_secs(30),
            watch: IdleWatch::default(),
        }
    }
}

/// What was evicted, counted from the worker's start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Pages of parked instances.
    pub parked_pages: AtomicU64,
    /// Pages of instances that run.
    pub warm_pages: AtomicU64,
    /// Pages of them that were touched again, about.
    pub returned_pages: AtomicU64,
    /// Times that nothing was done since memory was short.
    pub pressed: AtomicU64,
    /// Times that nothing was done since the swap was nearly full.
    pub full: AtomicU64,
    /// Processor time, nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Processes that the kernel watches now.
    pub watched: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// A worker's evictor and the swap it fills.
pub struct IdleMemory {
    settings: IdleSettings,
    /// How its kernel is asked; nothing is where it cannot be.
    host: Host,
    swap: RwLock<Swap>,
    /// What it did.
    pub counts: Counts,
    stopped: Mutex<bool>,
    stops: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl IdleMemory {
    /// Removes what a killed worker left, and chooses the swap. Says in the log what was chosen. Blocks for some milliseconds.
    pub fn open(config: &WorkerConfig, cgroups: &Cgroups) -> Self {
        let (places, owner) = (Places::default(), Owner::of(&config.cgroup_parent));
        match zram::sweep(&places, owner) {
            Ok(0) => {}
            Ok(swept) => tracing::info!(swept, "removed the swap that a killed worker left"),
            Err(e) => tracing::warn!(error = %chain(&e), "the swap that a killed worker left stays"),
        }
        let settings = config.idle;
        let host = if settings.after.is_zero() {
            Err("idle memory is to stay".to_owned())
        } else if !cgroups.counts_swap() {
            // An instance could have any amount of it beyond its limit.
            Err("the kernel does not count swap by control group (boot with swapaccount=1)".to_owned())
        } else {
            kernel::probe()
        };
        let (host, swap) = match host {
            Ok(host) => (host, Swap::choose(settings.swap, "/proc".as_ref(), &places, owner)),
            Err(why) => (Host::Scans, Swap::Nothing(why)),
        };
        tracing::info!(%swap, "where written pages go that are not touched for a while");
        Self {
            settings,
            host,
            swap: RwLock::new(swap),
            counts: Counts::default(),
            stopped: Mutex::new(false),
            stops: Condvar::new(),
            thread: Mutex::new(None),
        }
    }

    /// Evicts from now on, on a thread of its own, until [`IdleMemory::stop`].
    pub(crate) fn start(worker: &Arc<Worker>) {
        let idle = &worker.idle;
        if idle.settings.after.is_zero() {
            return;
        }
        let (weak, own) = (Arc::downgrade(worker), Arc::clone(idle));
        let begun = std::thread::Builder::new()
            .name("idle-memory".to_owned())
            .spawn(move || evictor::run(&weak, &own));
        match begun {
            Ok(thread) => *idle.thread.lock() = Some(thread),
            Err(e) => tracing::warn!(error = %e, "idle memory stays: no thread for it"),
        }
    }

    /// Evicts no more, and gives a swap of its own back. To be called when the instances are gone; blocks until what of others' is in it is
    /// in memory again.
    pub fn stop(&self) {
        *self.stopped.lock() = true;
        self.stops.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // It was told why if it panicked.
            let _ = thread.join();
        }
        let swap = std::mem::replace(&mut *self.swap.write(), Swap::Nothing("the worker stops".to_owned()));
        if let Swap::Own(device) = swap
            && let Err(e) = device.take_down()
        {
            tracing::warn!(error = %chain(&e), "the worker's swap stays until its next start");
        }
    }

    /// Where written pages go, in a word: `own_zram`, `host_zram`, `zswap`, `none`.
    pub fn swap_kind(&self) -> &'static str {
        self.swap.read().kind()
    }

    /// How full the zram device is that they go to, if it is one.
    pub fn fill(&self) -> Option<Fill> {
        self.swap.read().fill()
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.lock()
    }

    /// Waits; `false` when it is to stop meanwhile.
    fn rest(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.stops.wait_for(&mut stopped, time);
        }
        !*stopped
    }
}
