//! Reports to the scheduler which snapshots this host keeps: open ones, and others whose chunks are in the disk's
//! cache. After a change the whole list is sent until the scheduler acknowledges it; otherwise nothing is sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::internal::RestorableSnapshots;

use crate::snapshots::Snapshots;

/// Interval between checks which closed snapshots are still cached.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The kept snapshots as last reported.
#[derive(Debug, Default)]
pub struct RestorableReport {
    now: Mutex<(RestorableSnapshots, Option<Instant>)>,
    known: AtomicU64,
}

impl RestorableReport {
    /// Returns what the scheduler does not know yet.
    pub fn unreported(&self, snapshots: &Snapshots) -> Option<RestorableSnapshots> {
        let mut now = self.now.lock();
        let (kept, looked) = &mut *now;
        let templates = snapshots.open_ids();
        let is_old = looked.is_none_or(|at| at.elapsed() > LOOK_EVERY);
        if is_old || templates != kept.templates {
            let cached = snapshots.cached_ids();
            *looked = Some(Instant::now());
            if kept.revision == 0 || templates != kept.templates || cached != kept.cached {
                *kept = RestorableSnapshots {
                    revision: kept.revision + 1,
                    templates,
                    cached,
                };
            }
        }
        (kept.revision != self.known.load(Ordering::Relaxed)).then(|| kept.clone())
    }

    /// Records that the scheduler knows this revision.
    pub fn is_known(&self, revision: u64) {
        self.known.store(revision, Ordering::Relaxed);
    }
}
