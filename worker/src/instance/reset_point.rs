//! Where a copy of a function with `fresh` is put back to, and whether that is worth a try.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rekindle_pager::Layout;
use rekindle_rewind::Point;
use tokio::sync::OwnedSemaphorePermit;

use super::counted::ByteCounts;
use crate::host::host_pids::HostPids;

/// After how many copies in a row that could not be put back fewer are tried.
const FAILED_MAX: u32 = 3;
/// The most copies that are not tried then is two to this power.
const SKIPPED_MAX: u32 = 8;

/// Whether resets of a function's copies are worth a try.
#[derive(Debug, Default)]
pub(super) struct ResetPolicy {
    failed: AtomicU32,
    skipped: AtomicU32,
}

impl ResetPolicy {
    /// Returns whether the point of the next copy is to be saved.
    pub(super) fn is_due(&self) -> bool {
        let skip = |left: u32| left.checked_sub(1);
        self.skipped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, skip)
            .is_err()
    }

    pub(super) fn succeeded(&self) {
        self.failed.store(0, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        let before = self.failed.fetch_add(1, Ordering::Relaxed);
        if let Some(often) = (before + 1).checked_sub(FAILED_MAX) {
            self.skipped.store(1 << often.min(SKIPPED_MAX), Ordering::Relaxed);
        }
    }
}

/// Where a copy is put back to.
pub(super) struct ResetPoint {
    pub(super) point: Point,
    /// Of the process, at the checkpoint.
    pub(super) pid: i32,
    pub(super) hosts: HostPids,
    pub(super) layout: Layout,
    pub(super) counts: Arc<ByteCounts>,
    pub(super) secrets_revision: u64,
    pub(super) saved: Instant,
    pub(super) age_max: Duration,
    pub(super) room: OwnedSemaphorePermit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_function_that_cannot_be_put_back_are_tried_less_and_less() {
        let policy = ResetPolicy::default();
        let mut tried = Vec::new();
        for copy in 0..100 {
            if policy.is_due() {
                policy.failed();
                tried.push(copy);
            }
        }
        assert_eq!(tried, [0, 1, 2, 4, 7, 12, 21, 38, 71]);
        while !policy.is_due() {}
        policy.succeeded();
        assert!((0..100).all(|_| policy.is_due()));
        policy.failed();
        assert!(policy.is_due());
    }
}
