//! How much memory all templates of a host take together, and the notification when it is too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The sum and its limit.
#[derive(Debug)]
pub(super) struct ByteBudget {
    bytes: AtomicU64,
    limit: u64,
    /// Notified when the sum exceeds the limit.
    pub(super) over: Notify,
}

impl ByteBudget {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicU64::new(0),
            limit,
            over: Notify::new(),
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns by how much the sum would exceed the limit if `more` were added.
    pub(super) fn excess(&self, more: u64) -> u64 {
        self.bytes().saturating_add(more).saturating_sub(self.limit)
    }
}

/// An owner's part of the sum; returned on drop.
#[derive(Debug)]
pub(super) struct Charge {
    level: Arc<ByteBudget>,
    bytes: AtomicU64,
}

impl Charge {
    pub(super) fn new(level: &Arc<ByteBudget>, bytes: u64) -> Self {
        let charge = Self {
            level: Arc::clone(level),
            bytes: AtomicU64::new(0),
        };
        charge.add(bytes);
        charge
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.level.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.level.excess(0) > 0 {
            self.level.over.notify_one();
        }
    }

    /// Subtracts bytes that were added before.
    pub(super) fn remove(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.level.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.level.bytes.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_charged_is_given_back_and_too_much_is_told() {
        let level = ByteBudget::new(100);
        let first = Charge::new(&level, 60);
        let second = Charge::new(&level, 30);
        assert_eq!((level.excess(10), level.excess(11)), (0, 1));
        second.add(20);
        level.over.notified().await;
        second.remove(15);
        assert_eq!((level.bytes(), first.bytes(), second.bytes()), (95, 60, 35));
        drop(first);
        assert_eq!(level.bytes(), 35);
    }
}
