//! Limits how much one instance may log. Pure: the caller supplies the time.

use std::time::{Duration, Instant};

/// Tokens that come back at a steady rate, up to a burst.
#[derive(Debug)]
pub(super) struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    since: Instant,
}

impl TokenBucket {
    pub(super) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst);
        Self {
            per_second: f64::from(per_second),
            burst,
            tokens: burst,
            since: now,
        }
    }

    /// Returns how many tokens there are.
    pub(super) fn available(&mut self, now: Instant) -> usize {
        let passed: Duration = now.saturating_duration_since(self.since);
        self.since = self.since.max(now);
        self.tokens = (self.tokens + passed.as_secs_f64() * self.per_second).min(self.burst);
        // The cast saturates: what was spent ahead is none.
        self.tokens as usize
    }

    /// Takes this many tokens, also those that come back later. Returns how long until they have.
    pub(super) fn spend(&mut self, tokens: u32, now: Instant) -> Duration {
        self.available(now);
        self.tokens -= f64::from(tokens);
        Duration::from_secs_f64((-self.tokens / self.per_second).max(0.0))
    }

    /// Takes one token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.available(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_only_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(10, 20, start);
        assert_eq!(bucket.available(start), 20);
        assert_eq!((0..100).filter(|_| bucket.take(start)).count(), 20);
        assert_eq!(bucket.available(start), 0);
        let later = start + Duration::from_millis(500);
        assert_eq!((0..100).filter(|_| bucket.take(later)).count(), 5);
        assert_eq!(bucket.spend(5, later), Duration::from_millis(500));
        assert_eq!(bucket.spend(5, later), Duration::from_secs(1));
        assert_eq!(bucket.spend(0, later + Duration::from_secs(2)), Duration::ZERO);
        let much_later = start + Duration::from_secs(3_600);
        assert_eq!((0..100).filter(|_| bucket.take(much_later)).count(), 20);
    }
}
