//! Turns a directory of CRIU images into checked types, and refuses everything else.
//!
//! CRIU restores as root whatever its images say, and images come from where an attacker may have written them. What passes
//! here gives the restored processes no more than a function has: its user, no capability, a known system call filter,
//! its limits, the namespaces of its sandbox, and the files whose paths [`Verified::opened_paths`] tells.
//!
//! ```text
//! directory ─read─> (name, bytes) ─frames─> messages, byte for byte ─rules─> Verified
//! ```
//!
//! A path says nothing of what lies there: whoever took the checkpoint compares the opened paths with the files of the
//! processes while these stand still. The contents of pages are not looked at.

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
pub use expected::{Expected, Limit, PagesIn, RESOURCES, Travelling};
pub use kinds::EAGER_PREFIX;
pub use verified::{ImageMode, OpenedPath, Process, Purpose, Thread, Verified};

/// Images by file name. Of pages images nothing but the name is looked at.
pub type Images<'a> = BTreeMap<&'a str, &'a [u8]>;

/// Checks the images in `dir`, as CRIU's dump left them. Blocks while it reads them.
///
/// # Errors
/// When a file cannot be read, or says anything that is not expected.
pub fn verify(dir: &Path, expected: &Expected) -> Result<Verified, VerifyError> {
    let files = directory::read(dir, expected)?;
    let images = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    verify_images(&images.collect(), expected)
}

/// Checks images. Pure.
///
/// # Errors
/// When an image says anything that is not expected.
pub fn verify_images(images: &Images<'_>, expected: &Expected) -> Result<Verified, VerifyError> {
    rules::check(images, expected)
}
