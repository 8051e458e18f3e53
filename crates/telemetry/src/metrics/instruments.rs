//! One time series each: a counter, a gauge, a histogram. All are written without a lock, except a histogram's
//! exemplars.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::context::TraceRef;

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds to the value; `n` may be negative.
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One measured value and the trace that it belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct Exemplar {
    /// The measured value.
    pub value: f64,
    /// The trace and span in which it was measured.
    pub trace: TraceRef,
    /// When it was measured.
    pub at: SystemTime,
}

/// Counts of values between bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last counts values above all of them.
    counts: Box<[AtomicU64]>,
    /// Bits of an `f64`.
    sum: AtomicU64,
    /// The last exemplar of each bucket.
    exemplars: Mutex<Vec<Option<Exemplar>>>,
}

impl Histogram {
    /// An empty histogram. Bounds ascend.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0.0_f64.to_bits()),
            exemplars: Mutex::default(),
        }
    }

    /// Records a duration.
    pub fn record(&self, took: Duration) {
        self.note(took.as_secs_f64());
    }

    /// Records a duration, and keeps `trace` as an exemplar if it is given.
    pub fn record_in(&self, took: Duration, trace: Option<TraceRef>) {
        let value = took.as_secs_f64();
        let bucket = self.note(value);
        let Some(trace) = trace else { return };
        // Never waits for the lock: another exemplar does as well.
        let Some(mut exemplars) = self.exemplars.try_lock() else {
            return;
        };
        if exemplars.is_empty() {
            exemplars.resize(self.counts.len(), None);
        }
        let at = SystemTime::now();
        exemplars[bucket] = Some(Exemplar { value, trace, at });
    }

    fn note(&self, value: f64) -> usize {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // The function never returns `None`.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        bucket
    }

    /// The current counts.
    pub fn read(&self) -> HistogramValue {
        HistogramValue {
            bounds: self.bounds.into(),
            counts: self.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect(),
            sum: f64::from_bits(self.sum.load(Ordering::Relaxed)),
            exemplars: self.exemplars.lock().clone(),
        }
    }
}

/// A histogram at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HistogramValue {
    /// Upper bounds, ascending.
    pub bounds: Box<[f64]>,
    /// Number of values at or below each bound and above the previous one; the last, of those above all bounds.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
    /// The last value of each bucket that belongs to a sampled trace; empty if there is none.
    pub exemplars: Vec<Option<Exemplar>>,
}

impl HistogramValue {
    /// Number of values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_bound_counts_below_it_and_one_above_all_counts_too() {
        let histogram = Histogram::new(&[0.001, 0.01]);
        for ms in [1, 2, 10, 11] {
            histogram.record(Duration::from_millis(ms));
        }
        let read = histogram.read();
        assert_eq!((read.counts.as_slice(), read.count()), (&[1, 2, 1][..], 4));
        assert!((read.sum - 0.024).abs() < 1e-9);
        assert!(read.exemplars.is_empty());
    }

    #[test]
    fn the_last_traced_value_of_a_bucket_is_its_exemplar() {
        let histogram = Histogram::new(&[0.001]);
        let trace = |n: u8| TraceRef {
            trace_id: [n; 16],
            span_id: [n; 8],
        };
        for n in 1..=2 {
            histogram.record_in(Duration::from_micros(u64::from(n)), Some(trace(n)));
        }
        histogram.record_in(Duration::from_micros(3), None);
        let read = histogram.read();
        assert_eq!(read.exemplars[0].as_ref().map(|e| e.trace), Some(trace(2)));
        assert_eq!(read.exemplars[1], None);
    }
}
