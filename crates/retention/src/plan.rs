//! How long a function's instances stand by, and when one is started ahead. It is the hybrid histogram of "Serverless
//! in the Wild" (section 4.2), on a ladder with a cheap rung in the middle.
//!
//! The paper keeps a function's process for a window learned from its idle times, or unloads it and loads it before the
//! next expected call. Here nearly all of that window is spent parked, which costs a few megabytes; the instance stays
//! ready only for the first part. Head and tail are the 5th and 99th percentile, widened by a tenth, as in the paper.
//! If the histogram is not informative:
//!
//! - Fewer than four idle times ([`Basis::New`]): ready for 5 bins, then parked until 60.
//! - Spread over many bins, whose counts vary by less than twice their mean ([`Basis::Irregular`]): ready for one bin,
//!   then parked for the histogram's whole range, as in the paper.
//! - Most beyond the histogram, the last ones alike ([`Basis::Rare`]): gone after a bin. One stands by from 15 % before
//!   the shortest until 15 % after the longest of the last eight. The paper fits ARIMA there; eight numbers take less
//!   and predict a period as well.
//! - Most beyond the histogram, unlike: ready for one bin, parked until 10. Then only the template stays.

use std::time::Duration;

use crate::idle_times::{BINS, IdleTimes};

/// With fewer idle times nothing is known.
const LEAST: u32 = 4;
const HEAD: f64 = 0.05;
const TAIL: f64 = 0.99;
const MARGIN: f64 = 0.10;
const FAR_MARGIN: f64 = 0.15;
/// The last idle times beyond the histogram are alike if the longest is at most this many times the shortest.
const FAR_ALIKE: f64 = 1.3;
/// Below this the histogram does not predict the next call.
const VARIATION: f64 = 2.0;
const NEW_READY: u32 = 5;
const NEW_PARKED: u32 = 60;
const RARE_PARKED: u32 = 10;
/// An instance that would be gone for fewer bins than this stays parked instead.
const GAP: u32 = 30;

/// Settings that an operator may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Bin width: all times of a plan are multiples of it.
    pub bin: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bin: Duration::from_secs(60),
        }
    }
}

/// What a plan is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Too little is known.
    New,
    /// The histogram is informative.
    Learned,
    /// The histogram is not informative.
    Irregular,
    /// The function is called so rarely that its idle times are beyond the histogram.
    Rare,
}

/// A stretch of time after a function's last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its beginning.
    pub from: Duration,
    /// Its end.
    pub until: Duration,
}

/// How long instances of a function stand by. All times count from the last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// End of the time as ready.
    pub ready: Duration,
    /// End of the time as parked. An instance that cannot be parked goes when `ready` is over.
    pub parked: Duration,
    /// When one instance stands by after the function's last use, started ahead if there is none.
    pub ahead: Option<Window>,
    /// What the plan is based on.
    pub basis: Basis,
}

impl Plan {
    /// Makes a plan from what is known of a function's idle times.
    pub fn of(times: &IdleTimes, settings: Settings) -> Self {
        let bins = |n: f64| settings.bin.mul_f64(n);
        let stay = |ready: u32, parked: u32, basis| Self {
            ready: settings.bin * ready,
            parked: settings.bin * parked,
            ahead: None,
            basis,
        };
        let range = u32::try_from(BINS).unwrap_or(u32::MAX);
        if times.seen() < LEAST {
            return stay(NEW_READY, NEW_PARKED, Basis::New);
        }
        if times.share_beyond() > 0.5 {
            return match times.far(LEAST as usize) {
                Some((shortest, longest)) if f64::from(longest + 1) <= f64::from(shortest) * FAR_ALIKE => Self {
                    ahead: Some(Window {
                        from: bins(f64::from(shortest) * (1.0 - FAR_MARGIN)),
                        until: bins(f64::from(longest + 1) * (1.0 + FAR_MARGIN)),
                    }),
                    ..stay(1, 1, Basis::Rare)
                },
                _ => stay(1, RARE_PARKED, Basis::Rare),
            };
        }
        if times.variation() < VARIATION {
            return stay(1, range, Basis::Irregular);
        }
        let from = bins(times.quantile(HEAD) as f64 * (1.0 - MARGIN));
        let until = bins((times.quantile(TAIL) + 1) as f64 * (1.0 + MARGIN));
        let ready = settings.bin.min(until);
        Self {
            ready,
            parked: if from > ready + settings.bin * GAP {
                ready
            } else {
                until
            },
            ahead: Some(Window { from, until }),
            basis: Basis::Learned,
        }
    }

    /// Whether one instance should stand by, `idle` after the function's last use.
    pub fn stands_by(&self, idle: Duration) -> bool {
        self.ahead
            .is_some_and(|window| window.from <= idle && idle < window.until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn plan(minutes: impl IntoIterator<Item = u64>) -> Plan {
        let mut times = IdleTimes::default();
        for m in minutes {
            times.add(MINUTE * u32::try_from(m).unwrap(), MINUTE);
        }
        Plan::of(&times, Settings::default())
    }

    #[test]
    fn one_that_is_called_each_hour_goes_and_stands_by_before_the_next_call() {
        let hourly = plan([60; 10]);
        assert_eq!(hourly.basis, Basis::Learned);
        assert_eq!(
            (hourly.ready, hourly.parked),
            (MINUTE, MINUTE),
            "only the template stays"
        );
        assert!(!hourly.stands_by(50 * MINUTE));
        assert!(hourly.stands_by(55 * MINUTE) && hourly.stands_by(60 * MINUTE));
        assert!(!hourly.stands_by(70 * MINUTE), "it did not come");
    }

    #[test]
    fn one_that_is_called_each_ten_minutes_stays_parked_as_the_gap_is_short() {
        let often = plan([10; 10]);
        assert_eq!((often.ready, often.parked), (MINUTE, MINUTE.mul_f64(11.0 * 1.1)));
        assert!(often.stands_by(10 * MINUTE), "also after it was evicted");
    }

    #[test]
    fn what_the_histogram_does_not_tell_falls_back() {
        let new = plan([60; 3]);
        assert_eq!(
            (new.basis, new.ready, new.parked),
            (Basis::New, 5 * MINUTE, 60 * MINUTE)
        );
        let irregular = plan(0..240);
        assert_eq!((irregular.basis, irregular.parked), (Basis::Irregular, 240 * MINUTE));
        let daily = plan([1440, 1441, 1440, 1439]);
        assert_eq!((daily.basis, daily.parked), (Basis::Rare, MINUTE));
        assert!(!daily.stands_by(1200 * MINUTE) && daily.stands_by(1439 * MINUTE));
        let whenever = plan([1440, 300, 5000, 800]);
        assert_eq!(
            (whenever.basis, whenever.parked, whenever.ahead),
            (Basis::Rare, 10 * MINUTE, None)
        );
    }

    proptest! {
        #[test]
        fn a_plan_is_in_order_and_bounded(
            minutes in proptest::collection::vec(prop_oneof![0_u64..240, 240_u64..20_000], 0..300)
        ) {
            let plan = plan(minutes.clone());
            prop_assert!(plan.ready <= plan.parked);
            prop_assert!(plan.parked <= MINUTE.mul_f64(BINS as f64 * 1.1));
            if let Some(window) = plan.ahead {
                prop_assert!(window.from < window.until);
                let longest = minutes.iter().max().copied().unwrap_or(0) + 1;
                prop_assert!(window.until <= MINUTE.mul_f64(longest as f64 * 1.16));
            }
        }

        #[test]
        fn a_steady_call_finds_an_instance_standing_by(every in 1_u64..2_000, calls in 5_usize..40) {
            let plan = plan(vec![every; calls]);
            let idle = MINUTE * every as u32;
            prop_assert!(idle < plan.parked || plan.stands_by(idle), "{plan:?}");
        }
    }
}
