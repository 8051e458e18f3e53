//! Space on the host's disks.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Size counted for a file in addition to its content, in bytes.
const ENTRY_BYTES: u64 = 1024;

/// Returns the bytes that are free for writers on the disk with this directory.
pub(crate) fn free_bytes(directory: &Path) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(directory).ok()?;
    Some(disk.blocks_available() * disk.fragment_size())
}

/// Returns the bytes that the files in a tree take, as far as paths reach.
pub(crate) fn tree_bytes(directory: &Path) -> u64 {
    tree_walk(directory, u64::MAX).unwrap_or_else(|PathsTooLong(bytes)| bytes)
}

/// Some paths are longer than the kernel takes. Contains the bytes that were counted.
#[derive(Debug)]
pub(crate) struct PathsTooLong(pub(crate) u64);

/// Returns the bytes that the files in a tree take. Stops counting above `enough`. Files that vanish meanwhile count
/// nothing.
pub(crate) fn tree_walk(directory: &Path, enough: u64) -> Result<u64, PathsTooLong> {
    let mut bytes = 0_u64;
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let metadata = match fs::symlink_metadata(entry.path()) {
                Err(e) if e.kind() == io::ErrorKind::InvalidFilename => return Err(PathsTooLong(bytes)),
                Err(_) => continue,
                Ok(metadata) => metadata,
            };
            if metadata.is_dir() {
                left.push(entry.path());
            }
            bytes = bytes.saturating_add(metadata.len().max(metadata.blocks() * 512) + ENTRY_BYTES);
            if bytes > enough {
                return Ok(bytes);
            }
        }
    }
    Ok(bytes)
}
