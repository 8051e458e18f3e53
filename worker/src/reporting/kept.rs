//! What the scheduler is told of the snapshots this host keeps: open ones, and others whose chunks are in the disk's cache. The whole list is told when
//! it has changed, until the scheduler says that it knows it; else nothing is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::internal::Kept;

use crate::snapshots::Snapshots;

/// How often to look what of closed snapshots is still cached.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What is kept, as it was told last.
#[derive(Debug, Default)]
pub struct KeptReport {
    now: Mutex<(Kept, Option<Instant>)>,
    known: AtomicU64,
}

impl KeptReport {
    /// What the scheduler has not been told.
    pub fn untold(&self, snapshots: &Snapshots) -> Option<Kept> {
        let mut now = self.now.lock();
        let (kept, looked) = &mut *now;
        let templates = snapshots.open_ids();
        let is_old = looked.is_none_or(|at| at.elapsed() > LOOK_EVERY);
        if is_old || templates != kept.templates {
            let cached = snapshots.cached_ids();
            *looked = Some(Instant::now());
            if kept.revision == 0 || templates != kept.templates || cached != kept.cached {
                *kept = Kept {
                    revision: kept.revision + 1,
                    templates,
                    cached,
                };
            }
        }
        (kept.revision != self.known.load(Ordering::Relaxed)).then(|| kept.clone())
    }

    /// The scheduler knows this revision.
    pub fn is_known(&self, revision: u64) {
        self.known.store(revision, Ordering::Relaxed);
    }
}
