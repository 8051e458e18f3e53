//! Who tells what is untouched: the kernel where it watches processes, else eviction alone. The kernel is asked by a thread of its own, since it answers when it has
//! looked often enough; what watches for somebody else is asked for again once in a while.
//!
//! ```text
//! evictor ── processes and their sizes ──> watcher ── follow, untouched ──> DAMON
//!    └────── what was told of each last <─────┘
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::IdleSettings;
use super::damon::{self, Lack, Watch};
use super::policy::Run;

/// Between two attempts to be the one that DAMON watches for.
const AGAIN: Duration = Duration::from_secs(60);
/// Between two rounds of questions, at least.
const ROUND: Duration = Duration::from_millis(500);
/// How long is waited for an answer at the end. Some kernels (6.14 and later without a mending of 2026) give none of a process that ends just then.
const LAST: Duration = Duration::from_secs(3);

/// Who is to tell what an instance that runs does not touch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IdleWatch {
    /// The kernel, where it can (DAMON), and which evicted pages come back.
    #[default]
    Kernel,
    /// Which evicted pages come back, alone.
    Eviction,
}

impl FromStr for IdleWatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "eviction" => Ok(Self::Eviction),
            _ => Err("use kernel or eviction".to_owned()),
        }
    }
}

/// What the evictor and the thread tell each other.
#[derive(Default)]
struct Shared {
    /// Whom to watch, each with its pages.
    processes: Vec<(i32, u64)>,
    /// What of those that are watched is untouched, by address.
    untouched: HashMap<i32, Vec<Run>>,
    stopped: bool,
}

/// Asks the kernel until it is dropped.
pub(super) struct Watcher {
    shared: Arc<(Mutex<Shared>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn new(settings: IdleSettings) -> Self {
        let shared = Arc::<(Mutex<Shared>, Condvar)>::default();
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

    /// Has the kernel watch the largest of these processes, each with its pages; answers how many it does.
    pub(super) fn follow(&self, processes: Vec<(i32, u64)>) -> usize {
        let mut shared = self.shared.0.lock();
        shared.processes = processes;
        // It may wait for the first of them.
        self.shared.1.notify_all();
        shared.untouched.len()
    }

    /// What of a process nobody had touched for long enough when it was last asked, by address; `None` where nobody tells.
    pub(super) fn untouched(&self, pid: i32) -> Option<Vec<Run>> {
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
        // It was told why if it panicked.
        let _ = thread.join();
    }
}

/// Asks, round by round.
fn watch((shared, stops): &(Mutex<Shared>, Condvar), admin: &Path, rest: Duration) {
    let mut watch = None;
    let mut next = Some(Instant::now());
    loop {
        let processes = {
            let mut shared = shared.lock();
            if watch.is_none() {
                // Where nothing can be evicted nobody is ever to be watched.
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
            // Of one that is new nothing is known to be.
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

/// The kernel's watch, or when it is worth asking for it again.
fn open(admin: &Path, rest: Duration) -> (Option<Watch>, Option<Instant>) {
    match Watch::open(admin, rest) {
        Ok(watch) => {
            tracing::info!("DAMON tells what of the largest processes is untouched");
            (Some(watch), None)
        }
        Err(lack @ Lack::Unknown(_)) => {
            tracing::info!(%lack, "evicted pages alone tell, by coming back, what is in use");
            (None, None)
        }
        Err(lack @ Lack::Busy) => {
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
        let shared = Arc::<(Mutex<Shared>, Condvar)>::default();
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
