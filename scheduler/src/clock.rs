//! The scheduler's own clock, which only goes forward, and days.

use std::time::{Duration, UNIX_EPOCH};

/// Milliseconds on the scheduler's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Millis(pub u64);

impl Millis {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Time since `earlier`; zero if that lies ahead.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl From<Duration> for Millis {
    fn from(d: Duration) -> Self {
        Self(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Seconds of a day.
const DAY_S: i64 = 86_400;

/// The day of a time by UTC, in days since the Unix epoch.
pub(crate) fn day_of(unix_s: i64) -> u32 {
    u32::try_from(unix_s.div_euclid(DAY_S)).unwrap_or(0)
}

/// A day, given in days since the Unix epoch, as `2026-11-26`.
pub(crate) fn date(day: u64) -> String {
    let at = UNIX_EPOCH + Duration::from_secs(day.saturating_mul(DAY_S.unsigned_abs()));
    let text = humantime::format_rfc3339_seconds(at).to_string();
    text.get(..10).unwrap_or_default().to_owned()
}
