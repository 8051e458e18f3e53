//! Chunks: reading regions out of them, through a cache of chunks on disk.

mod cache;
mod reader;

pub use cache::{CacheError, ChunkCache};
pub use reader::{ReadError, RegionReader};
