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

/// The init program of this build, if it was built: cargo builds it for no unit test.
pub(crate) fn init_binary() -> Option<std::path::PathBuf> {
    let here = std::env::current_exe().ok()?;
    let binary = here.ancestors().nth(2)?.join("rekindle-init");
    binary.is_file().then_some(binary)
}
