//! Converts between CRIU's image directories, in every form, and our snapshots.
//!
//! ```text
//! image directory ──read──► PageFile: runs, blocks, alignment ──► plain pages, 4 MiB at a time
//!    plain, compressed by CRIU 4.3,          │
//!    with a chain of parents                 ├─ convert:  compress, decompress in place
//!                                            ├─ flatten:  one plain directory without parents ──► import: a snapshot
//! snapshot ──export──► plain directory, as CRIU wrote it
//! ```
//!
//! Memory use does not grow with the images, except for the pagemaps.

mod chain;
mod convert;
mod directory;
mod error;
mod export;
mod flatten;
mod import;
mod pages;
mod replace;
#[cfg(test)]
mod tests;

pub use convert::{Compression, Converted, compress, decompress};
pub use directory::BLOCK_BYTES_DEFAULT;
pub(crate) use directory::Directory;
pub use error::InterchangeError;
pub(crate) use error::{image_at, io_at};
pub use export::{ExportError, Exported, export, write_whole};
pub use import::{ImportError, import};
