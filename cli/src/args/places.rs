//! The directories of a platform.

use std::path::PathBuf;

use clap::Args;

/// The directories of a platform on this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlatformDirs {
    /// Data that must be kept: functions, snapshots, metadata, keys, logs.
    #[arg(long, value_name = "DIR", env = "FN_DATA", default_value = "/var/lib/rekindle")]
    pub(crate) data: PathBuf,
    /// Data that can be made again: runtimes, templates, chunks.
    #[arg(long, value_name = "DIR", env = "FN_CACHE", default_value = "/var/cache/rekindle")]
    pub(crate) cache: PathBuf,
    /// Data that lasts as long as the platform runs: its pid and its mounts.
    #[arg(long, value_name = "DIR", env = "FN_RUN", default_value = "/run/rekindle")]
    pub(crate) run: PathBuf,
}
