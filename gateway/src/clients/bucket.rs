//! A token bucket: requests a second, with a burst.

use std::time::Instant;

/// Seconds' worth of the rate that may come at once.
const BURST_S: f64 = 2.0;

#[derive(Debug)]
pub(super) struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    pub(super) fn full(per_second: u32, now: Instant) -> Self {
        Self {
            tokens: f64::from(per_second) * BURST_S,
            at: now,
        }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, per_second: u32, now: Instant) -> bool {
        self.tokens = self.tokens_at(per_second, now);
        self.at = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }

    pub(super) fn is_full(&self, per_second: u32, now: Instant) -> bool {
        self.tokens_at(per_second, now) >= f64::from(per_second) * BURST_S
    }

    fn tokens_at(&self, per_second: u32, now: Instant) -> f64 {
        let rate = f64::from(per_second);
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens + since * rate).min(rate * BURST_S)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_taken_at_once_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut bucket = Bucket::full(10, start);
        assert!((0..20).all(|_| bucket.take(10, start)));
        assert!(!bucket.take(10, start));
        let mut taken = 0;
        for ms in 1..=3_000 {
            taken += u32::from(bucket.take(10, start + Duration::from_millis(ms)));
        }
        assert!((29..=30).contains(&taken), "{taken}");
        assert!(!bucket.is_full(10, start + Duration::from_millis(4_900)));
        assert!(bucket.is_full(10, start + Duration::from_millis(5_100)));
    }
}
