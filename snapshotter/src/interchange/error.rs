//! Errors of reading and changing image directories.

use std::io;
use std::path::{Path, PathBuf};

use rekindle_criu::images::ImageError;

/// Why an image directory cannot be used, or was not changed.
#[derive(Debug, thiserror::Error)]
pub enum InterchangeError {
    /// A file or directory could not be read or written.
    #[error("could not {action} {}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        cause: io::Error,
    },
    /// A file is not the image that its name suggests.
    #[error("{} cannot be used", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        #[source]
        cause: ImageError,
    },
    /// A required image is missing.
    #[error("{} is missing: name the directory that CRIU dumped into, with --images-dir or -D", .0.display())]
    Missing(PathBuf),
    /// The pages image's size differs from its pagemap.
    #[error(
        "{} has {found} bytes where its pagemap says {expected}: it is cut off; copy or dump it again",
        path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Actual size.
        found: u64,
        /// Expected size.
        expected: u64,
    },
    /// Two pagemaps refer to one pages image.
    #[error("{} has the pages of two pagemaps: the directory is not one dump", .0.display())]
    SharedPages(PathBuf),
    /// A compressed block does not decode.
    #[error(
        "the block at byte {offset} of {} is no lz4 block of {expected} bytes: it is corrupt; copy it again",
        path.display()
    )]
    Block {
        /// The file.
        path: PathBuf,
        /// Offset of the block.
        offset: u64,
        /// Bytes of memory that it should hold.
        expected: usize,
    },
    /// LZ4 failed.
    #[error("lz4 could not compress a block of {}", path.display())]
    Compress {
        /// The file.
        path: PathBuf,
        /// LZ4's error.
        #[source]
        cause: io::Error,
    },
    /// A page is not in the parent that should have it.
    #[error(
        "the page at {address:#x} of {} is not in its parent {}: the chain of pre-dumps is not whole",
        path.display(), parent.display()
    )]
    NotInParent {
        /// The pagemap.
        path: PathBuf,
        /// The parent directory.
        parent: PathBuf,
        /// The page's address.
        address: u64,
    },
    /// A directory needs a parent but has none.
    #[error(
        "{} has pages in a parent, but there is no {}: put the link back to the pre-dump's directory",
        path.display(), link.display()
    )]
    NoParent {
        /// The pagemap.
        path: PathBuf,
        /// Where the parent should be.
        link: PathBuf,
    },
    /// Too many parents, or a cycle.
    #[error("{} has more than {max} parents, or is its own: set its \"parent\" links right", path.display())]
    Parents {
        /// The directory.
        path: PathBuf,
        /// Maximum number of parents.
        max: usize,
    },
    /// Pages that are in neither the directory nor a parent.
    #[error(
        "{} lacks the pages at {address:#x}: they were left in the process; dump without --lazy-pages",
        path.display()
    )]
    Absent {
        /// The pagemap.
        path: PathBuf,
        /// The address.
        address: u64,
    },
    /// A backup of that name exists already.
    #[error("{} is there already: move it away, or say --in-place to keep no backups", .0.display())]
    Backup(PathBuf),
    /// A block size that CRIU rejects.
    #[error("a block has a multiple of 4096 bytes and at most 4M, not {0}")]
    BlockSize(u64),
    /// An acceleration that LZ4 does not support.
    #[error("acceleration is 1 to 65537, not {0}")]
    Acceleration(i32),
    /// A foreign file in the place of the note about files being replaced.
    #[error("{} is no note of files being replaced: look at the directory, then remove it", .0.display())]
    Note(PathBuf),
}

/// Adds the file to an I/O error.
pub(crate) fn io_at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InterchangeError + use<> {
    let path = path.to_owned();
    move |cause| InterchangeError::Io { action, path, cause }
}

/// Adds the file to an image error.
pub(crate) fn image_at(path: &Path) -> impl FnOnce(ImageError) -> InterchangeError + use<> {
    let path = path.to_owned();
    move |cause| InterchangeError::Image { path, cause }
}
