//! What was fetched of layers that are read as they are touched.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchReason {
    /// The index, and what the rehearsal had read.
    Start,
    /// Somebody waits for it.
    Touched,
    /// Nobody waits for it.
    Background,
}

/// Bytes fetched, and reads that failed.
#[derive(Debug, Default)]
pub(crate) struct LazyCounts {
    fetched: [AtomicU64; 3],
    failed: AtomicU64,
}

impl LazyCounts {
    pub(super) fn add(&self, reason: FetchReason, bytes: u64) {
        self.fetched[reason as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the bytes fetched, by the metric's label.
    pub(crate) fn fetched(&self) -> Vec<(&'static str, u64)> {
        let labels = ["start", "touched", "background"];
        let bytes = self.fetched.iter().map(|bytes| bytes.load(Ordering::Relaxed));
        labels.into_iter().zip(bytes).collect()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}
