//! Lets the clocks of restored processes continue from their values at the checkpoint.

use std::fs;
use std::io;

use nix::time::{ClockId, clock_gettime};

use crate::protocol::Clocks;

const SECOND: i64 = 1_000_000_000;

/// Sets the clocks of the future children of `criu`, which waits and has created a time namespace for them. Once CRIU
/// has forked, the clocks are fixed.
///
/// # Errors
/// If the kernel refuses.
pub fn set(criu: i32, clocks: &Clocks) -> io::Result<()> {
    let mut text = String::new();
    for (name, id, then) in [
        ("monotonic", ClockId::CLOCK_MONOTONIC, clocks.monotonic),
        ("boottime", ClockId::CLOCK_BOOTTIME, clocks.boottime),
    ] {
        let now = clock_gettime(id)?;
        let (seconds, nanoseconds) = offset(then, (now.tv_sec(), now.tv_nsec()));
        text += &format!("{name} {seconds} {nanoseconds}\n");
    }
    fs::write(format!("/proc/{criu}/timens_offsets"), text)
}

/// The offset from `now` to `then`. Nanoseconds are never negative.
fn offset(then: (i64, i64), now: (i64, i64)) -> (i64, i64) {
    let nanoseconds = then.1 - now.1;
    (
        then.0
            .saturating_sub(now.0)
            .saturating_add(nanoseconds.div_euclid(SECOND)),
        nanoseconds.rem_euclid(SECOND),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_added_to_now_is_then() {
        assert_eq!(offset((10, 5), (3, 2)), (7, 3));
        assert_eq!(offset((10, 2), (3, 5)), (6, 999_999_997));
        assert_eq!(offset((3, 5), (10, 2)), (-7, 3));
        assert_eq!(offset((3, 2), (10, 5)), (-8, 999_999_997));
    }
}
