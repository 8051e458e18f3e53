//! Latency of page faults, from when the pager was notified to when the page was present. Counts are in buckets of
//! powers of two, written by one thread and read by any, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bucket `n` counts faults below 2^n ns that are in no lower bucket. The last bucket counts everything above 8.6 s.
const BUCKETS: usize = 35;

/// A histogram of fault latencies.
pub struct Latency {
    counts: [AtomicU64; BUCKETS],
    /// Nanoseconds.
    total: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            total: AtomicU64::new(0),
        }
    }
}

impl std::fmt::Debug for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |share| self.quantile(share).unwrap_or_default();
        write!(f, "p50<{:?} p99<{:?} max<{:?}", at(0.5), at(0.99), at(1.0))
    }
}

impl Latency {
    /// Counts one fault.
    pub(crate) fn record(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - nanoseconds.leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Total duration of all faults.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total.load(Ordering::Relaxed))
    }

    /// For each bound, the number of faults that took less than it and more than the previous bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let bound = |n: usize| Duration::from_nanos(1 << n);
        self.counts
            .iter()
            .enumerate()
            .map(move |(n, count)| (bound(n), count.load(Ordering::Relaxed)))
    }

    /// A bound below which this share (0 to 1) of the faults lies. `None` without any faults.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let total: u64 = self.buckets().map(|(_, count)| count).sum();
        let wanted = ((total as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        self.buckets().find_map(|(bound, count)| {
            below += count;
            (below >= wanted).then_some(bound)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_bound_at_most_twice_as_high() {
        let latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        for us in 1..=100 {
            latency.record(Duration::from_micros(us));
        }
        for (share, exact) in [(0.5, 50), (0.99, 99), (1.0, 100)] {
            let (bound, exact) = (latency.quantile(share).unwrap(), Duration::from_micros(exact));
            assert!(exact < bound && bound <= exact * 2, "{share}: {bound:?}");
        }
    }

    #[test]
    fn nothing_is_too_short_or_too_long_to_be_counted() {
        let latency = Latency::default();
        latency.record(Duration::ZERO);
        latency.record(Duration::MAX);
        assert_eq!(latency.buckets().map(|(_, count)| count).sum::<u64>(), 2);
    }
}
