//! Wall-clock time, as messages and the database have it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch; 0 before it.
pub fn unix_s() -> i64 {
    i64::try_from(since_epoch().as_secs()).unwrap_or(i64::MAX)
}

/// Milliseconds since the Unix epoch; 0 before it.
pub fn unix_ms() -> i64 {
    i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX)
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
