//! Finds untouched memory: through the kernel if it watches processes, otherwise by eviction alone.
//!
//! A separate thread asks the kernel, which replies only after enough samplings. If the kernel's watch is in use by
//! somebody else, the thread asks again once in a while.
//!
//! ```text
//! evictor ── processes and their sizes ──> watcher ── follow, untouched ──> DAMON
//!    └────── what was told of each last <─────┘
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::damon::{self, DamonMonitor, DamonUnavailable};
use super::settings::{IdleSettings, IdleWatch};
use crate::host::pagemap::PagemapRun;

/// Interval between attempts to get the use of DAMON.
const AGAIN: Duration = Duration::from_secs(60);
/// Minimum interval between two rounds of questions.
const ROUND: Duration = Duration::from_millis(500);
/// How long to wait for an answer at the end. Some kernels (6.14 and later without a fix of 2026) give none for a
/// process that ends just then.
const LAST: Duration = Duration::from_secs(3);

/// State shared by the evictor and the thread.
#[derive(Default)]
struct WatchState {
    /// Processes to watch, with their numbers of pages.
    processes: Vec<(i32, u64)>,
    /// Untouched memory of the watched processes, by address.
    untouched: HashMap<i32, Vec<PagemapRun>>,
    stopped: bool,
}

/// Asks the kernel until it is dropped.
pub(super) struct Watcher {
    shared: Arc<(Mutex<WatchState>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn new(settings: IdleSettings) -> Self {
        let shared = Arc::<(Mutex<WatchState>, Condvar)>::default();
        let own = Arc::clone(&shared);
        let asks = || {
            let named = thread::Builder::new().name("idle-watch".to_owned());
            named.spawn(move || watch(&own, Path::new(damon::ADMIN), settings.after))
        };
        let thread = (settings.watch == IdleWatch::Kernel).then(asks);
        let thread = thread.and_then(|spawned| {
            let failed =
                |error: &std::io::Error| tracing::warn!(%error, "no thread to ask DAMON: eviction alone tells");
            spawned.inspect_err(failed).ok()
        });
        Self { shared, thread }
    }

    /// Makes the kernel watch the largest of these processes, given with their numbers of pages. Returns how many it
    /// watches.
    pub(super) fn follow(&self, processes: Vec<(i32, u64)>) -> usize {
        let mut shared = self.shared.0.lock();
        shared.processes = processes;
        // The thread may wait for the first of them.
        self.shared.1.notify_all();
        shared.untouched.len()
    }

    /// Returns the memory of a process that had been untouched for long enough at the last question, by address.
    /// Returns `None` if nobody reports it.
    pub(super) fn untouched(&self, pid: i32) -> Option<Vec<PagemapRun>> {
        self.shared.0.lock().untouched.get(&pid).cloned()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.0.lock().stopped = true;
        self.shared.1.notify_all();
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + LAST;
        while !thread.is_finished() {
            if Instant::now() >= end {
                tracing::warn!("DAMON does not answer; the thread that waits for it is left behind");
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        // If the thread panicked, that was reported already.
        let _ = thread.join();
    }
}

/// Asks the kernel, round by round.
fn watch((shared, stops): &(Mutex<WatchState>, Condvar), admin: &Path, rest: Duration) {
    let mut watch = None;
    let mut next = Some(Instant::now());
    loop {
        let processes = {
            let mut shared = shared.lock();
            if watch.is_none() {
                // If nothing can be evicted, no process is ever watched.
                stops.wait_while(&mut shared, |s| !s.stopped && s.processes.is_empty());
            }
            let round = Instant::now() + ROUND;
            while !shared.stopped && !stops.wait_until(&mut shared, round).timed_out() {}
            if shared.stopped {
                return;
            }
            shared.processes.clone()
        };
        if watch.is_none() && !processes.is_empty() && next.is_some_and(|next| next <= Instant::now()) {
            (watch, next) = open(admin, rest);
            if watch.is_none() && next.is_none() {
                return;
            }
        }
        let Some(watch) = &mut watch else { continue };
        watch.follow(&processes);
        let watched: Vec<i32> = watch.watched().collect();
        {
            let mut shared = shared.lock();
            shared.untouched.retain(|pid, _| watched.contains(pid));
            // No memory of a new process is known to be untouched.
            for pid in &watched {
                shared.untouched.entry(*pid).or_default();
            }
        }
        for pid in watched {
            let told = watch.untouched(pid);
            let mut shared = shared.lock();
            if shared.stopped {
                return;
            }
            match told {
                Some(runs) => drop(shared.untouched.insert(pid, runs)),
                None => drop(shared.untouched.remove(&pid)),
            }
        }
    }
}

/// Returns the kernel's watch, or when to ask for it again.
fn open(admin: &Path, rest: Duration) -> (Option<DamonMonitor>, Option<Instant>) {
    match DamonMonitor::open(admin, rest) {
        Ok(watch) => {
            tracing::info!("DAMON tells what of the largest processes is untouched");
            (Some(watch), None)
        }
        Err(lack @ DamonUnavailable::Unknown(_)) => {
            tracing::info!(%lack, "evicted pages alone tell, by coming back, what is in use");
            (None, None)
        }
        Err(lack @ DamonUnavailable::Busy) => {
            tracing::debug!(%lack, "evicted pages alone tell, by coming back, what is in use");
            (None, Some(Instant::now() + AGAIN))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_says_who_tells() {
        assert_eq!("kernel".parse(), Ok(IdleWatch::Kernel));
        assert_eq!("eviction".parse(), Ok(IdleWatch::Eviction));
        assert!("damon".parse::<IdleWatch>().unwrap_err().contains("eviction"));
    }

    #[test]
    fn without_the_kernel_s_watch_nothing_is_told() {
        let watcher = Watcher::new(IdleSettings {
            watch: IdleWatch::Eviction,
            ..IdleSettings::default()
        });
        assert_eq!(watcher.follow(vec![(1, 1 << 20)]), 0);
        assert_eq!(watcher.untouched(1), None);
    }

    #[test]
    fn who_asks_ends_with_who_is_told() {
        [false, true].into_iter().for_each(ends);
    }

    fn ends(is_asked: bool) {
        let shared = Arc::<(Mutex<WatchState>, Condvar)>::default();
        let own = Arc::clone(&shared);
        let thread = thread::spawn(move || watch(&own, Path::new("/proc/no-damon"), Duration::from_secs(1)));
        let watcher = Watcher {
            shared,
            thread: Some(thread),
        };
        if is_asked {
            watcher.follow(vec![(1, 1 << 20)]);
        }
        let begun = Instant::now();
        drop(watcher);
        assert!(begun.elapsed() < LAST, "it was left behind");
    }
}
