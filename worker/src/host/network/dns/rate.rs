//! Limits the rate of a sandbox's questions: a token bucket.

use std::time::Instant;

/// Questions a second.
const PER_SECOND: u32 = 200;
pub(super) const BURST: usize = 400;

pub(super) struct Rate {
    tokens: f64,
    at: Instant,
}

impl Rate {
    pub(super) fn full(now: Instant) -> Self {
        Self {
            tokens: BURST as f64,
            at: now,
        }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.tokens = self.at(now);
        self.at = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }

    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.at(now) >= BURST as f64
    }

    fn at(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens + since * f64::from(PER_SECOND)).min(BURST as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_may_come_at_once_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut rate = Rate::full(start);
        assert!((0..BURST).all(|_| rate.take(start)));
        assert!(!rate.take(start));
        let second = (1..=1_000)
            .filter(|ms| rate.take(start + Duration::from_millis(*ms)))
            .count();
        assert!((199..=200).contains(&second), "{second}");
        assert!(rate.is_full(start + Duration::from_secs(4)));
    }
}
