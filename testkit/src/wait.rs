//! Waiting for a condition, with a limit.

use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(20);

/// Calls `ready` until it returns a value; panics with `what` if `limit` passes first.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        thread::sleep(PAUSE);
    }
}
