//! Limits a thread to a share of one processor, by the thread's own clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// What a thread has used, and may use.
#[derive(Debug)]
pub struct Throttle {
    share: f64,
    before: Duration,
}

impl Throttle {
    /// Creates a throttle for the calling thread, which may use this share of a processor.
    #[must_use]
    pub fn new(share: f64) -> Self {
        Self { share, before: used() }
    }

    /// Returns the processor time used since the last call, and how long the thread has to rest for it.
    pub fn spent(&mut self) -> (Duration, Duration) {
        let now = used();
        let spent = now.saturating_sub(std::mem::replace(&mut self.before, now));
        (spent, rest(spent, self.share))
    }
}

fn rest(spent: Duration, share: f64) -> Duration {
    spent.mul_f64((1.0 / share - 1.0).max(0.0))
}

/// Returns the processor time of the calling thread.
fn used() -> Duration {
    // Every kernel has this clock.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_works_for_a_twentieth_rests_for_the_others() {
        assert_eq!(rest(Duration::from_millis(10), 0.05), Duration::from_millis(190));
        assert_eq!(rest(Duration::from_millis(10), 1.0), Duration::ZERO);
        let mut throttle = Throttle::new(0.5);
        let mut sum = 0_u64;
        while throttle.before == used() {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(throttle.spent().0 > Duration::ZERO);
    }
}
