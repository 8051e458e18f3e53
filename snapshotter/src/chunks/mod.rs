//! Chunks: reading regions out of them, through a cache of chunks on disk.

mod cache;
mod part;
mod read_error;
mod reader;
mod sealed;
#[cfg(test)]
mod tests;

pub use cache::{CacheError, CacheUse, ChunkCache};
pub use read_error::ReadError;
pub use reader::{ReadCounts, RegionReader};
