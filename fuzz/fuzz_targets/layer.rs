#![no_main]

use std::sync::LazyLock;

use tempfile::TempDir;

/// On tmpfs where there is one: every input writes files.
static SCRATCH: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a scratch directory"));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _taken = rekindle_snapshotter::fuzz::layer(bytes, SCRATCH.path());
});
