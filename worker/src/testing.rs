//! What unit tests of several modules need.

use rekindle_wire::VersionNumber;
use rekindle_wire::function_config::parse;
use rekindle_wire::internal::{LayerRef, VersionSpec};
use rekindle_wire::processor::InstructionSets;

/// Says that a test cannot run here, and why; where all must run (`REKINDLE_REQUIRE_ALL=1`, as in CI) that is a
/// failure.
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

/// The first version of a function whose fn.toml has these lines below its name, without a snapshot.
pub(crate) fn spec(settings: &str) -> VersionSpec {
    let layer = LayerRef {
        digest: "0".repeat(64),
        tar_bytes: 1,
    };
    VersionSpec {
        function: "hello".parse().unwrap(),
        version: VersionNumber(1),
        config: parse(&format!("name = \"hello\"\n{settings}")).unwrap(),
        uid: 100_001,
        rootfs: layer.clone(),
        layer,
        snapshot: None,
        snapshot_digest: None,
        instruction_sets: InstructionSets::default(),
        reaper: false,
    }
}
