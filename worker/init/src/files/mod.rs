//! The private files of a sandbox that belong to a snapshot, as one tar: `/tmp`, `/dev/shm`, and what was written to
//! a container image's root. Init handles them
//! rather than the worker, since a path inside a sandbox is only safe to follow from inside. Named pipes are kept,
//! since CRIU opens them by name. Sockets are left out, because CRIU recreates them from the processes that hold them.
//!
//! A file keeps its identity: inode number, names, times, extended attributes and holes. A tmpfs assigns inode numbers
//! upwards from 1 at its root, so the archive lists the files by number. They are created in that order, with a
//! temporary file for each number in between, and so get their numbers back (`numbers.rs`). What a tar header has no
//! room for is in PAX records (`records.rs`).
//!
//! Neither the function's files nor an archive are trusted. Saving follows no symbolic link. Loading writes only below
//! the two folders, into directories that it has created itself, and overwrites nothing.

mod load;
mod numbers;
mod records;
mod save;

pub use load::{Loaded, load};
pub use numbers::reserve;
pub use save::{Saved, save};

/// What a function has written to its root, relative to `/`: the upper directory of an overlay. Only sandboxes of
/// container images have it. The overlay shows the inode numbers of its files, but for those that the image has too.
pub const WRITTEN: &str = "run/root/upper";
/// What is saved, relative to `/`.
pub const SAVED: [&str; 3] = ["tmp", "dev/shm", WRITTEN];
/// Device number of a file that says that a lower layer's is gone.
const WHITEOUT: u64 = 0;

#[cfg(test)]
mod tests;
