//! How many batches of a source are in flight at once: as many as its lag fills, up to the source's bound, doubled at
//! most at each look. Where the platform or the function wants less, half, and no more for a while.

use std::time::{Duration, Instant};

/// How long nothing grows after a batch was refused.
const QUIET: Duration = Duration::from_secs(10);
/// Refusals within this time are one.
const ONE: Duration = Duration::from_secs(1);

/// The pace of one source.
#[derive(Debug)]
pub(crate) struct Pace {
    batch: u64,
    max: u32,
    limit: u32,
    refused: Option<Instant>,
}

impl Pace {
    /// One batch at first.
    pub(crate) fn new(batch: u32, max: u32) -> Self {
        Self {
            batch: u64::from(batch.max(1)),
            max: max.max(1),
            limit: 1,
            refused: None,
        }
    }

    /// Number of batches that may be in flight.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether something was refused a short while ago.
    pub(crate) fn is_quiet(&self, now: Instant) -> bool {
        self.refused.is_some_and(|at| now.saturating_duration_since(at) < QUIET)
    }

    /// Takes in how many messages wait.
    pub(crate) fn look(&mut self, lag: u64, now: Instant) {
        let filled = u32::try_from(lag.div_ceil(self.batch)).unwrap_or(u32::MAX);
        let wanted = filled.clamp(1, self.max);
        self.limit = match wanted > self.limit {
            true if self.is_quiet(now) => self.limit,
            true => wanted.min(self.limit.saturating_mul(2)),
            false => wanted,
        };
    }

    /// Takes in that a batch was refused.
    pub(crate) fn refused(&mut self, now: Instant) {
        let is_another = self.refused.is_none_or(|at| now.saturating_duration_since(at) >= ONE);
        if is_another {
            self.limit = (self.limit / 2).max(1);
            self.refused = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_grows_with_the_lag_and_shrinks_with_it() {
        let (mut pace, now) = (Pace::new(10, 6), Instant::now());
        let mut limits = Vec::new();
        for lag in [0, 5, 1_000, 1_000, 1_000, 1_000, 25, 0] {
            pace.look(lag, now);
            limits.push(pace.limit());
        }
        assert_eq!(limits, [1, 1, 2, 4, 6, 6, 3, 1]);
    }

    #[test]
    fn it_halves_once_for_refusals_at_once_and_stays_there_for_a_while() {
        let (mut pace, start) = (Pace::new(1, 64), Instant::now());
        for _ in 0..6 {
            pace.look(1_000, start);
        }
        assert_eq!(pace.limit(), 64);
        for _ in 0..5 {
            pace.refused(start);
        }
        assert_eq!(pace.limit(), 32);
        pace.look(1_000, start + QUIET / 2);
        assert_eq!(pace.limit(), 32);
        assert!(pace.is_quiet(start + QUIET / 2));
        pace.look(1_000, start + QUIET);
        assert_eq!(pace.limit(), 64);
    }

    proptest! {
        #[test]
        fn whatever_happens_it_keeps_its_bounds(
            batch in 0u32..200, max in 0u32..200,
            steps in proptest::collection::vec((any::<bool>(), any::<u64>()), 0..50),
        ) {
            let (mut pace, mut now) = (Pace::new(batch, max), Instant::now());
            for (refused, lag) in steps {
                now += Duration::from_millis(lag % 7_000);
                let before = pace.limit();
                if refused {
                    pace.refused(now);
                    prop_assert!(pace.limit() <= before);
                } else {
                    pace.look(lag, now);
                    prop_assert!(pace.limit() <= before * 2);
                }
                prop_assert!((1..=max.max(1)).contains(&pace.limit()));
            }
        }
    }
}
