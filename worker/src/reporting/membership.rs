//! What this worker and the scheduler know of each other.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rekindle_wire::internal::Presence;

/// A worker's membership in its cluster.
#[derive(Debug)]
pub struct Membership {
    presence: Mutex<Presence>,
    leaving_is_known: AtomicBool,
    scheduler_is_reached: AtomicBool,
    is_known: AtomicBool,
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            presence: Mutex::new(Presence::Serving),
            leaving_is_known: AtomicBool::new(false),
            scheduler_is_reached: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
        }
    }
}

impl Membership {
    /// Returns the worker's presence, as reported to the scheduler.
    pub fn presence(&self) -> Presence {
        *self.presence.lock()
    }

    /// Changes the presence that the next report tells.
    pub(super) fn become_present(&self, presence: Presence) {
        *self.presence.lock() = presence;
    }

    /// Records that the scheduler accepted a report with this presence.
    pub(super) fn record_reported(&self, presence: Presence) {
        self.leaving_is_known
            .store(presence != Presence::Serving, Ordering::Relaxed);
    }

    /// Records whether the scheduler accepted the last report.
    pub(super) fn reached(&self, reached: bool) {
        self.scheduler_is_reached.store(reached, Ordering::Relaxed);
        self.is_known.fetch_or(reached, Ordering::Relaxed);
    }

    /// Returns whether the scheduler has heard that the worker leaves.
    pub fn leaving_is_known(&self) -> bool {
        self.leaving_is_known.load(Ordering::Relaxed)
    }

    /// Returns whether the scheduler accepted the last report.
    pub fn scheduler_is_reached(&self) -> bool {
        self.scheduler_is_reached.load(Ordering::Relaxed)
    }

    /// Returns whether a scheduler has heard of the worker since its start. Before that, nothing may be placed here:
    /// what a scheduler takes to be on this worker ran before the start, and is forgotten when the scheduler hears of
    /// the start.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }
}
