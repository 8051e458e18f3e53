//! When one function was used: its idle times are learned from what is seen of it, and its plan follows from those.

use std::time::Duration;

use crate::idle_times::{IdleTimes, StoredHistogram};
use crate::plan::{Plan, Settings};

/// Uses closer together than this are one use: a worker's reports, a second apart, cannot distinguish them, and a burst
/// must count once.
pub const MIN_IDLE: Duration = Duration::from_secs(2);

/// What is known of one function. About 700 bytes.
#[derive(Debug, Clone)]
pub struct History {
    times: IdleTimes,
    plan: Plan,
    settings: Settings,
    last_use: Option<Duration>,
    in_use: bool,
}

impl History {
    /// A history of which nothing is known yet.
    pub fn new(settings: Settings) -> Self {
        Self::of(IdleTimes::default(), settings)
    }

    /// Restores what was learned before. The time of the last use is not part of it.
    pub fn learned(noted: &StoredHistogram, settings: Settings) -> Option<Self> {
        Some(Self::of(IdleTimes::of(noted, settings.bin)?, settings))
    }

    /// What was learned, in the form to be stored.
    pub fn noted(&self) -> StoredHistogram {
        self.times.noted(self.settings.bin)
    }

    fn of(times: IdleTimes, settings: Settings) -> Self {
        Self {
            plan: Plan::of(&times, settings),
            times,
            settings,
            last_use: None,
            in_use: false,
        }
    }

    /// Records that the function was last used at `at`, and is still in use if `in_use`. Call it as often as that may
    /// have changed; late or repeated calls do no harm. Returns whether an idle time was learned.
    pub fn seen(&mut self, at: Duration, in_use: bool) -> bool {
        let idle = at.saturating_sub(self.last_use.unwrap_or(at));
        let learns = !self.in_use && idle >= MIN_IDLE;
        if learns {
            self.times.add(idle, self.settings.bin);
            self.plan = Plan::of(&self.times, self.settings);
        }
        self.in_use = in_use;
        self.last_use = Some(self.last_use.map_or(at, |last| last.max(at)));
        learns
    }

    /// Records that none of its instances runs any more, whatever was last seen.
    pub fn gone(&mut self) {
        self.in_use = false;
    }

    /// The current plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How long it has been idle; `None` if it is in use, or never was.
    pub fn idle(&self, now: Duration) -> Option<Duration> {
        let last = self.last_use.filter(|_| !self.in_use)?;
        Some(now.saturating_sub(last))
    }

    /// Whether one of its instances should stand by now.
    pub fn stands_by(&self, now: Duration) -> bool {
        self.idle(now).is_some_and(|idle| self.plan.stands_by(idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Basis;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_counts_once_and_a_long_call_is_no_idle_time() {
        let mut history = History::new(Settings::default());
        let mut now = Duration::ZERO;
        for _ in 0..6 {
            for _ in 0..50 {
                history.seen(now, false);
                now += S / 10;
            }
            // One use of a minute, seen each second, and once five seconds late.
            for second in 0..60 {
                if second % 10 != 5 {
                    history.seen(now, true);
                }
                now += S;
            }
            history.seen(now, false);
            now += 3600 * S;
        }
        assert_eq!(history.plan().basis, Basis::Learned);
        assert_eq!(history.times.seen(), 5);
        assert_eq!(history.times.quantile(0.01), 60);
    }

    #[test]
    fn it_stands_by_only_while_it_is_idle_and_what_is_told_late_changes_nothing() {
        let mut history = History::new(Settings { bin: S });
        assert!(!history.stands_by(5 * S) && history.idle(5 * S).is_none());
        for call in 0..6 {
            history.seen(call * 50 * S, false);
        }
        history.seen(200 * S, false);
        assert!(!history.stands_by(270 * S) && history.stands_by(299 * S));
        history.seen(300 * S, true);
        assert!(!history.stands_by(349 * S), "it is in use");
    }
}
