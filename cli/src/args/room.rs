//! Options for how much of its host a worker may use, shared by `fn up` and `fn worker`.

use std::time::Duration;

use clap::Args;
use rekindle_wire::function_config::{ByteSize, parse_duration};
use rekindle_worker::config::{FilterChoice, Restorer};
use rekindle_worker::idle::IdleWatch;
use rekindle_worker::idle::swap::IdleSwap;

/// Limits of what a worker keeps.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RoomArgs {
    /// Memory for all instances, for example 4GiB; by default half of the machine's.
    #[arg(long, value_name = "SIZE", env = "FN_MEMORY")]
    pub(crate) memory: Option<ByteSize>,
    /// Memory for all templates, the plain copies of snapshots that instances share; by default a quarter of the
    /// machine's.
    #[arg(long, value_name = "SIZE", env = "FN_TEMPLATE_MEMORY")]
    pub(crate) template_memory: Option<ByteSize>,
    /// Disk for compressed chunks of snapshots; by default 4GiB.
    #[arg(long, value_name = "SIZE", env = "FN_CHUNK_CACHE")]
    pub(crate) chunk_cache: Option<ByteSize>,
    /// Disk for unpacked layers, the files of functions and runtimes; by default 8GiB. Layers in use are kept.
    #[arg(long, value_name = "SIZE", env = "FN_LAYER_CACHE")]
    pub(crate) layer_cache: Option<ByteSize>,
    /// Size from which an image is restored before its files are on the host; by default 32MiB; 0 for never. Needs
    /// Linux 6.12.
    #[arg(long, value_name = "SIZE", env = "FN_LAZY_IMAGES", value_parser = or_zero)]
    pub(crate) lazy_images: Option<u64>,
    /// Maximum that each instance may read from the disk in a second; by default 512MiB; 0 for no limit.
    #[arg(long, value_name = "SIZE", env = "FN_DISK_READ", value_parser = or_zero)]
    pub(crate) disk_read: Option<u64>,
    /// Where memory goes that instances wrote and do not touch. `host`: the host's swap, if it is compressed memory.
    /// `zram:SIZE`: a new swap of that size, if the host has none. `none`: it stays in memory.
    #[arg(long, value_name = "SWAP", env = "FN_IDLE_SWAP", default_value = "host")]
    pub(crate) idle_swap: IdleSwap,
    /// How long an instance must leave memory untouched before it is evicted; 0s to keep all of it.
    #[arg(long, value_name = "DURATION", env = "FN_IDLE_AFTER", default_value = "30s", value_parser = parse_duration)]
    pub(crate) idle_after: Duration,
    /// What determines which memory a running instance does not touch: `kernel` for DAMON, if the kernel has it, or
    /// `eviction` for only the evicted pages that come back.
    #[arg(long, value_name = "WHO", env = "FN_IDLE_WATCH", default_value = "kernel")]
    pub(crate) idle_watch: IdleWatch,
    /// What restores instances: `auto` for restore programs where snapshots have one, or `criu`.
    #[arg(long, value_name = "WHO", env = "FN_RESTORER", default_value = "auto")]
    pub(crate) restorer: Restorer,
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

/// Parses a size, or 0 for none.
fn or_zero(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        size => size.parse::<ByteSize>().map(|s| s.0).map_err(|e| e.to_string()),
    }
}
