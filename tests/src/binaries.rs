//! The programs under test and what they need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The names of the root filesystems.
const RUNTIMES: [&str; 4] = ["base", "python", "node", "build"];

/// The directory of `fn` and `rekindle-init`: `REKINDLE_BIN_DIR`, or where cargo built the test.
///
/// # Panics
/// If they are not there.
pub fn directory() -> PathBuf {
    let dir = std::env::var_os("REKINDLE_BIN_DIR").map_or_else(
        // target/release/deps/loop-0123
        || std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned(),
        PathBuf::from,
    );
    for name in ["fn", "rekindle-init"] {
        let path = dir.join(name);
        assert!(
            path.exists(),
            "{} is missing: build it with `cargo build --release`, or set REKINDLE_BIN_DIR",
            path.display()
        );
    }
    dir
}

/// The project's checkout.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The directory of the root filesystems' archives, which are built if needed: that takes minutes, once.
pub fn runtimes() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let cache = std::env::var_os("FN_CACHE").map_or_else(|| PathBuf::from("/var/cache/rekindle"), PathBuf::from);
        let dir = cache.join("runtimes");
        for name in RUNTIMES {
            let status = Command::new(checkout().join("functions/runtimes/build.sh"))
                .arg(name)
                .arg(dir.join(format!("{name}.tar")))
                .status()
                .unwrap();
            assert!(status.success(), "the root filesystem \"{name}\" could not be built");
        }
        dir
    });
    &BUILT
}
