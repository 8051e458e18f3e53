//! What is in memory of asynchronous invocations, and who waits for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::queues::Queues;

/// Whether there may be something to post: callbacks, and events for destinations.
#[derive(Debug, Default)]
pub(super) struct PendingPosts {
    /// How often something was noted since nothing was there. 0 if nothing is.
    noted: AtomicU64,
}

impl PendingPosts {
    pub(super) fn may_exist(&self) -> bool {
        self.noted() != 0
    }

    pub(super) fn note(&self) {
        self.noted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns what a look at the database begins with.
    pub(super) fn noted(&self) -> u64 {
        self.noted.load(Ordering::Relaxed)
    }

    /// Records that such a look has found nothing. What was noted meanwhile, it may have missed.
    pub(super) fn none_found(&self, noted: u64) {
        // On failure something was noted.
        let _missed = self
            .noted
            .compare_exchange(noted, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// State shared by the parts.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(super) queues: Mutex<Queues>,
    /// One claim at a time: each must see what the one before has taken.
    pub(super) claiming: tokio::sync::Mutex<()>,
    pub(super) posts: PendingPosts,
    /// Signalled when something can be claimed.
    pub(super) work: Notify,
    /// Signalled when a call has ended.
    pub(super) ended: Notify,
    /// Set at shutdown: nothing is waited for any more.
    pub(super) ending: AtomicBool,
}

impl Calls {
    /// The counts. Never hold the lock across an await.
    pub(crate) fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    /// Answers all waiters now, as the scheduler shuts down.
    pub(crate) fn end_waits(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.work.notify_waiters();
        self.ended.notify_waiters();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Records that work was added other than by accepting a call.
    pub(crate) fn note_queued(&self) {
        self.queues.lock().note_unknown();
        self.work.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_finds_nothing_says_nothing_of_what_was_noted_meanwhile() {
        let posts = PendingPosts::default();
        assert!(!posts.may_exist());
        posts.note();
        let begun = posts.noted();
        posts.note();
        posts.none_found(begun);
        assert!(posts.may_exist());
        posts.none_found(posts.noted());
        assert!(!posts.may_exist());
    }
}
