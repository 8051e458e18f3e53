//! Options for how snapshots are made, shared by `fn up` and `fn worker`.

use clap::Args;
use rekindle_snapshotter::{Acceleration, Codec, RegionSize};
use rekindle_wire::function_config::ByteSize;

/// How the memory of new snapshots is cut and compressed; existing ones are restored as they were made.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct CodecArgs {
    /// Bytes of memory that are compressed, and fetched, as one: a power of two from 4K (each page by itself) to 4M.
    #[arg(long, value_name = "SIZE", env = "FN_REGION", default_value_t)]
    pub(crate) region: RegionSize,
    /// How soon LZ4 gives up looking for repetitions: 1 compresses best, 32 is fastest.
    #[arg(long, value_name = "N", env = "FN_ACCELERATION", default_value_t)]
    pub(crate) acceleration: Acceleration,
    /// Instances with more memory are checkpointed to the cache directory's disk instead of memory; by default an
    /// eighth of the machine's.
    #[arg(long, value_name = "SIZE", env = "FN_DUMP_IN_MEMORY")]
    pub(crate) dump_in_memory: Option<ByteSize>,
}

impl CodecArgs {
    pub(crate) fn codec(self) -> Codec {
        Codec {
            region: self.region,
            acceleration: self.acceleration,
        }
    }
}
