//! Counts of all instances' pagers together. Each pager has counts of its own, which only its thread writes. They are
//! added up here on request, and kept when the pager is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rekindle_pager::Stats;
use rekindle_telemetry::metrics::HistogramValue;

/// The pagers of a worker.
#[derive(Default)]
pub struct Pagers(Mutex<State>);

#[derive(Default)]
struct State {
    living: Vec<Arc<Stats>>,
    gone: PagerTotals,
}

/// Counts of several pagers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PagerTotals {
    /// Number of pagers of living instances.
    pub pagers: usize,
    /// See [`Stats`].
    pub faults: u64,
    /// See [`Stats`].
    pub fetched: u64,
    /// See [`Stats`].
    pub events: u64,
    /// Pages, by how they came.
    pub pages: [(&'static str, u64); 5],
    /// Durations of faults: bounds in seconds, and counts at or below them.
    pub latency: HistogramValue,
}

impl Pagers {
    /// Adds a pager's counts.
    pub fn watch(&self, stats: &Arc<Stats>) {
        self.0.lock().living.push(Arc::clone(stats));
    }

    /// Returns the counts of all present and past pagers.
    pub fn totals(&self) -> PagerTotals {
        let mut state = self.0.lock();
        let State { living, gone } = &mut *state;
        living.retain(|stats| {
            // Neither handle nor thread has it any more, so it does not change.
            let is_over = Arc::strong_count(stats) == 1;
            if is_over {
                gone.add(stats);
            }
            !is_over
        });
        let mut all = gone.clone();
        for stats in living.iter() {
            all.add(stats);
        }
        all.pagers = living.len();
        all
    }
}

impl PagerTotals {
    fn add(&mut self, stats: &Stats) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.faults += read(&stats.faults);
        self.fetched += read(&stats.fetched);
        self.events += read(&stats.events);
        let pages = [
            ("let_in", &stats.let_in),
            ("copied", &stats.copied),
            ("zeroed", &stats.zeroed),
            ("around", &stats.around),
            ("ahead", &stats.prefetched),
        ];
        for (sum, (how, count)) in self.pages.iter_mut().zip(pages) {
            *sum = (how, sum.1 + read(count));
        }
        let (mut bounds, mut counts): (Vec<f64>, Vec<u64>) = stats
            .latency
            .buckets()
            .map(|(bound, count)| (bound.as_secs_f64(), count))
            .unzip();
        // The last one counts everything above the bound before it.
        bounds.pop();
        if self.latency.counts.is_empty() {
            self.latency.bounds = bounds.into();
            self.latency.counts = vec![0; counts.len()];
        }
        for (sum, count) in self.latency.counts.iter_mut().zip(counts.drain(..)) {
            *sum += count;
        }
        self.latency.sum += stats.latency.total().as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pager_did_counts_once_while_it_lives_and_after() {
        let pagers = Pagers::default();
        assert_eq!(pagers.totals(), PagerTotals::default());
        let (one, two) = (Arc::new(Stats::default()), Arc::new(Stats::default()));
        for stats in [&one, &two] {
            pagers.watch(stats);
            stats.faults.store(5, Ordering::Relaxed);
            stats.zeroed.store(3, Ordering::Relaxed);
        }
        let together = pagers.totals();
        assert_eq!(
            (together.pagers, together.faults, together.pages[2]),
            (2, 10, ("zeroed", 6))
        );
        drop(one);
        for _ in 0..2 {
            let after = pagers.totals();
            assert_eq!((after.pagers, after.faults), (1, 10));
            assert_eq!(after.latency.counts.len(), after.latency.bounds.len() + 1);
        }
    }
}
