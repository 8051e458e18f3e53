//! How many instances may be evicted now for lack of memory: a bounded step at a time, and then a rest in which its
//! effect can be measured.
//!
//! ```text
//!            some >= 10 % or full >= 5 %, of which less than a quarter is available;
//!            or less than 5 % is available
//!   plenty ──────────────────────────────────────────────────────────────────────────> short: one in eight,
//!     ^                                                                                  1 to 16, each 2 s
//!     └── some < 5 % and full < 1 % (or a third is available), and 8 % is available ───────┘
//! ```
//!
//! Stalls alone do not count while a quarter of the memory is available: an instance that thrashes at its own limit
//! stalls too, and no eviction would help it. If the kernel has no PSI, only the available memory counts.

use std::time::Duration;

/// Memory pressure of a worker, per cent; `None` if it cannot be determined.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reading {
    /// Share of the last ten seconds in which some task waited for memory.
    pub some: Option<f64>,
    /// Share in which all tasks waited.
    pub full: Option<f64>,
    /// Share of all memory that is available without swapping.
    pub available: Option<f64>,
}

/// When memory becomes short, and when it is plenty again. Per cent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Memory is short if `some` is at least this ...
    pub some: f64,
    /// ... or `full` at least this ...
    pub full: f64,
    /// ... and less than this is available.
    pub enough: f64,
    /// Below this available memory it is short whatever stalls.
    pub least: f64,
    /// It is plenty again if `some` is below this ...
    pub calm_some: f64,
    /// ... and `full` below this, or `calm_enough` is available ...
    pub calm_full: f64,
    /// ... and in any case only once `calm_least` is available.
    pub calm_enough: f64,
    /// See `calm_enough`.
    pub calm_least: f64,
    /// Rest after a step.
    pub rest: Duration,
}

impl Thresholds {
    /// As documented in docs/how-to/reduce-memory.md.
    pub const DEFAULT: Self = Self {
        some: 10.0,
        full: 5.0,
        enough: 25.0,
        least: 5.0,
        calm_some: 5.0,
        calm_full: 1.0,
        calm_enough: 33.0,
        calm_least: 8.0,
        rest: Duration::from_secs(2),
    };
}

/// One in this many instances goes in a step.
const STEP: usize = 8;
const STEP_MAX: usize = 16;

/// The state of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Guard {
    short: bool,
    rests_until: Duration,
}

impl Guard {
    /// Whether memory is short there.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Applies a reading.
    pub fn read(&mut self, reading: Reading, limits: &Thresholds) {
        let some = reading.some.unwrap_or(0.0);
        let full = reading.full.unwrap_or(0.0);
        let below = |share: f64| reading.available.is_none_or(|available| available < share);
        let lacks = |share: f64| reading.available.is_some_and(|available| available < share);
        self.short = match self.short {
            false => (some >= limits.some || full >= limits.full) && below(limits.enough) || lacks(limits.least),
            true => {
                let stalls = (some >= limits.calm_some || full >= limits.calm_full) && below(limits.calm_enough);
                stalls || lacks(limits.calm_least)
            }
        };
    }

    /// How many of `unused` instances may be evicted now; they count as gone.
    pub fn step(&mut self, unused: usize, now: Duration, limits: &Thresholds) -> usize {
        if !self.short || unused == 0 || now < self.rests_until {
            return 0;
        }
        self.rests_until = now + limits.rest;
        (unused / STEP).clamp(1, STEP_MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn reading(some: f64, full: f64, available: f64) -> Reading {
        Reading {
            some: Some(some),
            full: Some(full),
            available: Some(available),
        }
    }

    fn after(readings: &[Reading]) -> bool {
        let mut guard = Guard::default();
        readings.iter().for_each(|r| guard.read(*r, &Thresholds::DEFAULT));
        guard.is_short()
    }

    #[test]
    fn memory_is_short_when_stalls_and_lack_agree_and_stays_so_until_it_is_calm() {
        assert!(
            !after(&[reading(50.0, 20.0, 60.0)]),
            "one that thrashes at its own limit"
        );
        assert!(after(&[reading(10.0, 0.0, 20.0)]));
        assert!(after(&[reading(0.0, 5.0, 20.0)]));
        assert!(after(&[reading(0.0, 0.0, 4.0)]));
        assert!(
            after(&[reading(10.0, 0.0, 20.0), reading(6.0, 0.0, 20.0)]),
            "not calm yet"
        );
        assert!(!after(&[reading(10.0, 0.0, 20.0), reading(4.0, 0.5, 20.0)]));
        assert!(after(&[reading(0.0, 0.0, 4.0), reading(0.0, 0.0, 7.0)]));
        assert!(!after(&[reading(0.0, 0.0, 4.0), reading(0.0, 0.0, 9.0)]));
    }

    #[test]
    fn what_the_kernel_does_not_tell_does_not_count() {
        let only = |some, available| Reading {
            some,
            full: None,
            available,
        };
        assert!(!after(&[Reading::default()]));
        assert!(after(&[only(Some(12.0), None)]));
        assert!(!after(&[only(None, Some(6.0))]));
        assert!(after(&[only(None, Some(3.0))]));
    }

    proptest! {
        #[test]
        fn steps_are_bounded_and_rest(unused in 0_usize..5_000, looks in 1_u32..400) {
            let limits = Thresholds::DEFAULT;
            let mut guard = Guard::default();
            guard.read(reading(99.0, 99.0, 1.0), &limits);
            let (mut gone, mut steps) = (0, 0);
            for look in 0..looks {
                let now = S / 10 * look;
                let some = guard.step(unused - gone, now, &limits);
                prop_assert!(some <= STEP_MAX && some <= unused - gone);
                steps += usize::from(some > 0);
                gone += some;
            }
            prop_assert!(steps <= 1 + looks as usize / 20);
            prop_assert!(unused == 0 || gone > 0);
        }
    }
}
