//! Chunks: reading regions out of them, through a cache of chunks on disk.

mod cache;
mod reader;
#[cfg(test)]
mod tests;

pub use cache::{CacheError, CacheUse, ChunkCache};
pub use reader::{ReadCounts, ReadError, RegionReader};
