//! When to collect, and the state that collections share.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rekindle_snapshotter::collect::NeedsCache;
use tokio::sync::{Mutex, Notify};

/// When to collect automatically, and what to release.
#[derive(Debug, Clone)]
pub struct CollectionSettings {
    /// Interval between two collections; zero for no automatic ones.
    pub every: Duration,
    /// Delay from a delete, or from the start, to the next collection.
    pub soon: Duration,
    /// Number of newest versions of a function that are kept; the live one is always kept.
    pub keep_versions: u32,
}

impl Default for CollectionSettings {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(3600),
            soon: Duration::from_secs(180),
            keep_versions: 10,
        }
    }
}

/// State shared by collections.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// Held by the collection in progress.
    pub(super) seen: Mutex<NeedsCache>,
    pub(super) deleted: Notify,
    pub(super) failures: AtomicU64,
}

impl Collector {
    /// Signals that something was deleted, so that there will be something to collect.
    pub(crate) fn note_deleted(&self) {
        self.deleted.notify_one();
    }
}
