//! What is in memory of asynchronous invocations, and who waits for them.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::queues::Queues;

/// State shared by the parts.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(super) queues: Mutex<Queues>,
    /// One claim at a time: each must see what the one before has taken.
    pub(super) claiming: tokio::sync::Mutex<()>,
    /// There may be callbacks to post, or destinations to tell.
    pub(super) callbacks: AtomicBool,
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
