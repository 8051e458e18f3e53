//! What unit tests of several modules need.

/// Says that a test cannot run here, and why; where all must run (`REKINDLE_REQUIRE_ALL=1`, as in CI) that is a failure.
#[track_caller]
pub(crate) fn skipped(reason: &str) {
    println!("skipped: {reason}");
    assert!(
        std::env::var("REKINDLE_REQUIRE_ALL").as_deref() != Ok("1"),
        "skipped: {reason}"
    );
}
