//! The private files of a sandbox that belong to a snapshot: `/tmp` and `/dev/shm`, as one tar. Done here and not by
//! the worker, since a path inside a sandbox is safe to follow only from inside. Named pipes are kept, since CRIU
//! opens them by name; sockets are left out: CRIU makes them again from the processes that hold them.
//!
//! A file keeps its identity: inode number, names, times, extended attributes and holes. A tmpfs counts inode numbers
//! up from 1 at its root, so the archive has the files by their numbers, and making them in that order, with a file
//! made and let go of for each number between, gives each its own again (`numbers.rs`). What a tar header has no room
//! for lies in PAX records (`records.rs`).
//!
//! Neither the function's files nor an archive are trusted: saving follows no symbolic link, loading writes only
//! below the two folders, into directories that it has made, and over nothing.

mod load;
mod numbers;
mod records;
mod save;

pub use load::{Loaded, load};
pub use save::{Saved, save};

/// What is saved, relative to `/`.
pub const SAVED: [&str; 2] = ["tmp", "dev/shm"];

#[cfg(test)]
mod tests;
