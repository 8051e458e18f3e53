//! How slow a peer may be: a minimum rate with some credit, so that a fast peer may pause. Pure: whoever waits for a
//! peer reports how long it waited, and what then moved.
//!
//! ```text
//! credit: at most `grace` ── a second of waiting ──> one second less ── `bytes_per_s` bytes ──> one second more
//! ```

use std::time::Duration;

/// The slowest rate at which a client may send or take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinRate {
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// How long nothing may move, after a while of moving faster.
    pub grace: Duration,
}

impl Default for MinRate {
    /// 1 KiB/s, and 20 seconds for a pause: less than any line gives today, and longer than a phone needs to change
    /// masts.
    fn default() -> Self {
        Self {
            bytes_per_s: 1 << 10,
            grace: Duration::from_secs(20),
        }
    }
}

/// What is left of a peer's credit.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: MinRate,
    credit: Duration,
}

impl Pace {
    pub(crate) fn new(rate: MinRate) -> Self {
        Self {
            rate,
            credit: rate.grace,
        }
    }

    /// How long the peer may be waited for from now on. Zero: it is too slow.
    pub(crate) fn left(&self) -> Duration {
        self.credit
    }

    /// How long the peer may be waited for if progress shows only once it has taken `bytes` bytes.
    pub(crate) fn left_for(&self, bytes: u64) -> Duration {
        self.credit + self.earned(bytes)
    }

    fn earned(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.rate.bytes_per_s.max(1) as f64)
    }

    /// Accounts for a wait, after which `bytes` bytes moved.
    pub(crate) fn moved(&mut self, waited: Duration, bytes: u64) {
        self.credit = (self.credit.saturating_sub(waited) + self.earned(bytes)).min(self.rate.grace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: MinRate = MinRate {
        bytes_per_s: 1_000,
        grace: Duration::from_secs(10),
    };

    #[test]
    fn who_keeps_to_the_rate_may_go_on_for_ever_and_who_is_slower_may_not() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(RATE);
        for _ in 0..1_000 {
            pace.moved(second, 1_000);
        }
        assert_eq!(pace.left(), RATE.grace);
        let mut seconds = 0;
        while pace.left() >= second {
            pace.moved(second, 500);
            seconds += 1;
        }
        assert_eq!(seconds, 19);
    }

    #[test]
    fn what_was_sent_fast_buys_no_longer_pause_than_the_grace() {
        let mut pace = Pace::new(RATE);
        pace.moved(Duration::ZERO, u64::MAX);
        assert_eq!(pace.left(), RATE.grace);
        pace.moved(RATE.grace, 0);
        assert_eq!(pace.left(), Duration::ZERO);
    }

    #[test]
    fn one_byte_at_a_time_is_not_moving() {
        let mut pace = Pace::new(RATE);
        for _ in 0..10 {
            pace.moved(Duration::from_secs(1), 1);
        }
        assert!(pace.left() <= Duration::from_millis(10), "{:?}", pace.left());
    }
}
