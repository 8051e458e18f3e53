//! How a container image wants to be run, which its build has written into its root filesystem.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rekindle_confined::image::{CONFIG, Config};

/// Maximum size of an image's configuration in bytes.
const CONFIG_MAX: u64 = 4 << 20;

/// Reads how an image wants to be run from its root filesystem. Blocks.
///
/// # Errors
/// If it cannot be read, or is none that a build has made.
pub(crate) fn config(rootfs: &Path) -> io::Result<Config> {
    let mut bytes = Vec::new();
    File::open(rootfs.join(CONFIG))?
        .take(CONFIG_MAX)
        .read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}
