//! Turns a directory of CRIU images into checked types, and rejects everything else.
//!
//! CRIU restores as root whatever its images contain, and an attacker may have written them. Verified images give the
//! restored processes no more than a function has. That is its user, no capabilities, a known system call filter, its
//! limits, the namespaces of its sandbox, and the files in [`Verified::opened_paths`].
//!
//! ```text
//! directory ─read─> (name, bytes) ─frames─> messages, byte for byte ─rules─> Verified
//! ```
//!
//! A path does not determine the file behind it. Whoever took the checkpoint compares the opened paths with the
//! processes' files while the processes are frozen. The contents of pages are not checked.

mod directory;
mod error;
mod expected;
mod frames;
pub mod fuzz;
mod kinds;
pub mod messages;
mod rules;
#[cfg(test)]
mod tests;
mod verified;

use std::collections::BTreeMap;
use std::path::Path;

pub use error::VerifyError;
pub use expected::{Expected, Limit, MigrationImages, PageLocation, RESOURCES};
pub use kinds::EAGER_PREFIX;
pub use rules::{processor_clock, shown_process};
pub use verified::{ImageMode, OpenedPath, Packet, PipeContent, Process, Purpose, Thread, UnlinkedFile, Verified};

/// Images by file name. Of a pages image, only the name is used.
pub type Images<'a> = BTreeMap<&'a str, &'a [u8]>;

/// Checks the images in `dir`, as left there by CRIU's dump. Blocks while it reads them.
///
/// # Errors
/// If a file cannot be read, or contains anything unexpected.
pub fn verify(dir: &Path, expected: &Expected) -> Result<Verified, VerifyError> {
    let files = directory::read(dir, expected)?;
    let images = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    verify_images(&images.collect(), expected)
}

/// Checks images in memory, within the bounds of those in a directory. Pure.
///
/// # Errors
/// If they are too many or too large, or contain anything unexpected.
pub fn verify_in_memory<'a>(
    images: impl Iterator<Item = (&'a str, &'a [u8])>,
    expected: &Expected,
) -> Result<Verified, VerifyError> {
    verify_images(&directory::bounded(images)?, expected)
}

/// Checks images. Pure.
///
/// # Errors
/// If an image contains anything unexpected.
pub fn verify_images(images: &Images<'_>, expected: &Expected) -> Result<Verified, VerifyError> {
    rules::check(images, expected)
}
