//! Why an image directory cannot be read or changed.

use std::io;
use std::path::{Path, PathBuf};

use crate::images::ImageError;

/// Why an image directory cannot be taken, or was not changed.
#[derive(Debug, thiserror::Error)]
pub enum InterchangeError {
    /// A file or directory could not be read or written.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A file is not the image its name says.
    #[error("{} cannot be used", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: ImageError,
    },
    /// An image that must be there is not.
    #[error("{} is missing: name the directory that CRIU dumped into, with --images-dir or -D", .0.display())]
    Missing(PathBuf),
    /// The pages image has another size than its pagemap says.
    #[error("{} has {found} bytes where its pagemap says {expected}: it is cut off; copy or dump it again", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The size it should have.
        expected: u64,
    },
    /// Two pagemaps name one pages image.
    #[error("{} has the pages of two pagemaps: the directory is not one dump", .0.display())]
    SharedPages(PathBuf),
    /// A compressed block does not decode.
    #[error("the block at byte {offset} of {} is no lz4 block of {expected} bytes: it is corrupt; copy it again", path.display())]
    Block {
        /// The file.
        path: PathBuf,
        /// Where the block begins.
        offset: u64,
        /// The memory it should hold.
        expected: usize,
    },
    /// LZ4 refused.
    #[error("lz4 could not compress a block of {}", path.display())]
    Compress {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A page that should be in a parent is not.
    #[error("the page at {address:#x} of {} is not in its parent {}: the chain of pre-dumps is not whole", path.display(), parent.display())]
    NotInParent {
        /// The pagemap.
        path: PathBuf,
        /// The parent directory.
        parent: PathBuf,
        /// The page's address.
        address: u64,
    },
    /// A directory needs a parent and has none.
    #[error("{} has pages in a parent, but there is no {}: put the link back to the pre-dump's directory", path.display(), link.display())]
    NoParent {
        /// The pagemap.
        path: PathBuf,
        /// Where the parent should be.
        link: PathBuf,
    },
    /// Too many parents, or a circle.
    #[error("{} has more than {max} parents, or is its own: set its \"parent\" links right", path.display())]
    Parents {
        /// The directory.
        path: PathBuf,
        /// How many there may be.
        max: usize,
    },
    /// Pages that are neither here nor in a parent.
    #[error("{} lacks the pages at {address:#x}: they were left in the process; dump without --lazy-pages", path.display())]
    Absent {
        /// The pagemap.
        path: PathBuf,
        /// The address.
        address: u64,
    },
    /// A backup is in the way.
    #[error("{} is there already: move it away, or say --in-place to keep no backups", .0.display())]
    Backup(PathBuf),
    /// A block size CRIU would refuse.
    #[error("a block has a multiple of 4096 bytes and at most 4M, not {0}")]
    BlockSize(u64),
    /// An acceleration LZ4 does not have.
    #[error("acceleration is 1 to 65537, not {0}")]
    Acceleration(i32),
    /// A note about files being replaced that is not ours.
    #[error("{} is no note of files being replaced: look at the directory, then remove it", .0.display())]
    Note(PathBuf),
}

/// Names the file in an I/O error.
pub(crate) fn io_at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InterchangeError + use<> {
    let path = path.to_owned();
    move |cause| InterchangeError::Io { action, path, cause }
}

/// Names the file in an image's error.
pub(crate) fn image_at(path: &Path) -> impl FnOnce(ImageError) -> InterchangeError + use<> {
    let path = path.to_owned();
    move |cause| InterchangeError::Image { path, cause }
}
