//! How many empty sandboxes are worth keeping: as many as were recently taken within one second, and some more. Pure;
//! the caller supplies the time.

use std::time::Duration;

/// How long a burst is remembered, in seconds.
const REMEMBERED: usize = 300;

/// Number of sandboxes taken, by second.
#[derive(Debug)]
pub(super) struct Demand {
    seconds: [u32; REMEMBERED],
    /// The last second that was looked at, since any fixed time.
    now: u64,
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            seconds: [0; REMEMBERED],
            now: 0,
        }
    }
}

impl Demand {
    pub(super) fn taken(&mut self, now: Duration) {
        self.go_on(now);
        let at = self.place(self.now);
        self.seconds[at] = self.seconds[at].saturating_add(1);
    }

    /// Returns how many to keep, within these bounds. It is a quarter more than the most that were taken within two
    /// consecutive seconds, since one burst may span two of them.
    pub(super) fn wanted(&mut self, now: Duration, least: usize, most: usize) -> usize {
        self.go_on(now);
        let ring = |n: usize| self.seconds[n % REMEMBERED] as usize;
        let oldest = self.place(self.now + 1);
        let bursts = (oldest..oldest + REMEMBERED - 1).map(|n| ring(n) + ring(n + 1));
        let busiest = bursts.max().unwrap_or(0);
        (busiest + busiest.div_ceil(4)).clamp(least, most.max(least))
    }

    fn place(&self, second: u64) -> usize {
        (second % REMEMBERED as u64) as usize
    }

    /// Clears the seconds in which nothing was recorded.
    fn go_on(&mut self, now: Duration) {
        let now = now.as_secs();
        let passed = now.saturating_sub(self.now).min(REMEMBERED as u64);
        for second in now + 1 - passed..=now {
            let at = self.place(second);
            self.seconds[at] = 0;
        }
        self.now = self.now.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn without_demand_the_least_is_kept_and_a_burst_raises_it_for_five_minutes() {
        let mut demand = Demand::default();
        assert_eq!(demand.wanted(at(1_000_000), 8, 64), 8);
        // Across the turn of a second.
        for ms in (1_000_950..1_001_050).step_by(5) {
            demand.taken(at(ms));
        }
        assert_eq!(demand.wanted(at(1_002_000), 8, 64), 25);
        assert_eq!(demand.wanted(at(1_290_000), 8, 64), 25);
        assert_eq!(demand.wanted(at(1_302_000), 8, 64), 8);
    }

    #[test]
    fn a_steady_rate_keeps_what_two_seconds_of_it_need_and_never_more_than_the_most() {
        let mut demand = Demand::default();
        for ms in (0..60_000).step_by(100) {
            demand.taken(at(ms));
        }
        assert_eq!(demand.wanted(at(60_000), 8, 64), 25);
        for ms in (60_000..70_000).step_by(2) {
            demand.taken(at(ms));
        }
        assert_eq!(demand.wanted(at(70_000), 8, 64), 64);
        assert_eq!(demand.wanted(at(70_000), 8, 4), 8);
    }

    #[test]
    fn a_clock_that_jumps_far_ahead_forgets_everything() {
        let mut demand = Demand::default();
        (0..50).for_each(|_| demand.taken(at(5_000)));
        assert_eq!(demand.wanted(at(5_000), 1, 99), 63);
        assert_eq!(demand.wanted(at(500_000_000), 1, 99), 1);
    }
}
