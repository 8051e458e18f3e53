//! Unpacks a container image into a root filesystem. The image is an [OCI image layout], which is not trusted.
//!
//! ```text
//! index.json ─► index ─► manifest of linux/amd64 ─┬─► layers, each over those before
//!                                                 └─► configuration ─► `.rekindle/image.json`
//! ```
//!
//! - Every blob has the digest by which it is named.
//! - The target is the root of the process, so links lead nowhere else. Owners, times, set-user-id bits, devices and
//!   all attributes but those of users ([`crate::attributes`]) are left out: a function could not use them.
//!
//! [OCI image layout]: https://github.com/opencontainers/image-spec/blob/main/image-layout.md

mod layers;
mod layout;
mod root;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Cause;
use crate::upload::Limits;

/// Where the root filesystem has its [`Config`].
pub const CONFIG: &str = ".rekindle/image.json";
/// The agent that keeps copies of Node.js and Bun from sharing random numbers, as runtimes have it too, by its path in
/// the root filesystem.
pub const AGENT: &str = ".rekindle/node/agent.js";
const AGENT_FILES: [(&str, &str); 4] = [
    (AGENT, include_str!("agent.js")),
    (
        ".rekindle/node/copies.js",
        include_str!("../../../../functions/runtimes/node/overlay/opt/rekindle/node/lib/copies.js"),
    ),
    (
        ".rekindle/node/libraries.js",
        include_str!("../../../../functions/runtimes/node/overlay/opt/rekindle/node/lib/libraries.js"),
    ),
    (
        ".rekindle/node/processors.js",
        include_str!("../../../../functions/runtimes/node/overlay/opt/rekindle/node/lib/processors.js"),
    ),
];
/// The architecture and operating system of functions.
pub const PLATFORM: [&str; 2] = ["amd64", "linux"];

/// How an image wants to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Digest of the image's manifest, as `sha256:…`.
    pub digest: String,
    /// Entry point and command.
    pub command: Vec<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Absolute path of the working directory.
    pub cwd: String,
    /// TCP ports on which it listens.
    pub ports: Vec<u16>,
}

/// Why an image was not unpacked. The text is for its deployer.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ImageError {
    /// It is no layout, or one that breaks the specification.
    #[error("the image is not a whole OCI image: {0}")]
    Malformed(String),
    /// There is no image of the platform.
    #[error("the image has nothing for linux/amd64, only for {0}: build it for that platform")]
    Platform(String),
    /// A blob does not match its digest.
    #[error("the image's blob {0} is corrupt or missing: save the image again")]
    Blob(String),
    /// A name leads outside.
    #[error("the image names \"{0}\", which is not a path inside it: build it again")]
    Outside(String),
    /// An entry cannot be unpacked.
    #[error("\"{path}\" in the image is {kind}: leave it out")]
    Kind {
        /// The entry.
        path: String,
        /// What it is.
        kind: String,
    },
    /// Too many bytes.
    #[error(
        "the image is larger than {limit} bytes unpacked: make it smaller, or have the operator raise --build-size"
    )]
    TooLarge {
        /// In bytes, unpacked.
        limit: u64,
    },
    /// Too many files.
    #[error("the image has more than {limit} files: make it smaller, or have the operator raise --build-files")]
    TooMany {
        /// The operator's `--build-files`.
        limit: u64,
    },
    /// The worker's own disk failed.
    #[error("write \"{0}\" of the image")]
    Write(String, #[source] Cause),
}

fn malformed(why: impl ToString) -> ImageError {
    ImageError::Malformed(why.to_string().chars().take(200).collect())
}

fn refused_kind(path: &Path, kind: impl Into<String>) -> ImageError {
    ImageError::Kind {
        path: path.display().to_string(),
        kind: kind.into(),
    }
}

fn unwritten(path: &Path, cause: io::Error) -> ImageError {
    ImageError::Write(path.display().to_string(), cause.into())
}

/// Unpacks the image in the directory `layout` into the empty directory `into`, and adds what a sandbox needs there:
/// mount points, a user, and [`CONFIG`]. Blocks.
///
/// # Errors
/// See [`ImageError`]. `into` contains part of the image then.
pub fn unpack(layout: OwnedFd, into: &Path, limits: &Limits) -> Result<(), ImageError> {
    let layout = layout::Layout::new(layout);
    let image = layout.image()?;
    layers::apply(&layout, &image.layers, into, limits)?;
    root::complete(into)?;
    root::working_directory(into, &image.config.cwd)?;
    root::remove(&into.join(".rekindle"))?;
    let config = serde_json::to_string(&image.config).map_err(malformed)?;
    for (name, text) in AGENT_FILES.into_iter().chain([(CONFIG, config.as_str())]) {
        let path = into.join(name);
        let made = fs::create_dir_all(path.parent().unwrap_or(into)).and_then(|()| fs::write(&path, text));
        made.map_err(|e| unwritten(&path, e))?;
    }
    Ok(())
}
