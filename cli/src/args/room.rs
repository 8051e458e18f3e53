//! How much of its host a worker may use: `fn up` and `fn worker` have these options.

use std::time::Duration;

use clap::Args;
use rekindle_wire::manifest::{ByteSize, parse_duration};
use rekindle_worker::config::FilterChoice;
use rekindle_worker::idle::IdleWatch;
use rekindle_worker::idle::swap::IdleSwap;

/// Limits of what a worker keeps.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RoomArgs {
    /// Memory that instances may use together, for example 4GiB; by default half of the machine's.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,
    /// Memory that templates, the plain copies of snapshots that instances share, may take together; by default a quarter of the
    /// machine's.
    #[arg(long, value_name = "SIZE", env = "FN_TEMPLATE_MEMORY")]
    pub(crate) template_memory: Option<ByteSize>,
    /// Disk that compressed chunks of snapshots may take; 4GiB by default.
    #[arg(long, value_name = "SIZE", env = "FN_CHUNK_CACHE")]
    pub(crate) chunk_cache: Option<ByteSize>,
    /// Disk that unpacked layers, the files of functions and runtimes, may take; 8GiB by default. What is in use stays.
    #[arg(long, value_name = "SIZE", env = "FN_LAYER_CACHE")]
    pub(crate) layer_cache: Option<ByteSize>,
    /// What each instance may read from the disk in a second, for example 512MiB, which is the default; 0 for as much as it can.
    #[arg(long, value_name = "SIZE", env = "FN_DISK_READ", value_parser = disk_read)]
    pub(crate) disk_read: Option<u64>,
    /// Where memory goes that instances wrote and do not touch: `host` for the host's swap, if it is compressed memory, `zram:SIZE` to make
    /// one of that size where the host has no swap, or `none` to keep it in memory.
    #[arg(long, value_name = "SWAP", env = "FN_IDLE_SWAP", default_value = "host")]
    pub(crate) idle_swap: IdleSwap,
    /// How long an instance must not have touched memory before it goes; 0s to keep all of it.
    #[arg(long, value_name = "DURATION", env = "FN_IDLE_AFTER", default_value = "30s", value_parser = parse_duration)]
    pub(crate) idle_after: Duration,
    /// Who tells what an instance that runs does not touch: `kernel`, by DAMON where it has that, or `eviction`, by which evicted pages come back, alone.
    #[arg(long, value_name = "WHO", env = "FN_IDLE_WATCH", default_value = "kernel")]
    pub(crate) idle_watch: IdleWatch,
    /// The system call filter that functions get: `current`, or the first digits of an earlier one's digest, to go back
    /// to it.
    #[arg(
        long,
        value_name = "FILTER",
        env = "FN_FUNCTION_FILTER",
        default_value = "current",
        hide_default_value = true
    )]
    pub(crate) function_filter: FilterChoice,
}

/// A size, or 0 for no limit.
fn disk_read(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        size => size.parse::<ByteSize>().map(|s| s.0).map_err(|e| e.to_string()),
    }
}
