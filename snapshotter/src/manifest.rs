//! The manifest: a snapshot's parts, with the digest of each. Pure.
//!
//! ```text
//! {"rekindle_snapshot":4,"blake3":"…","manifest":{…}}
//! ```
//!
//! `blake3` covers the bytes of the value of `manifest` exactly as written, so a flipped bit in the manifest is
//! detected too. The manifest is written last and never changes.

#[cfg(test)]
mod tests;

use std::fmt;

use rekindle_wire::function_config::Runtime;
use rekindle_wire::internal::LayerRef;
use rekindle_wire::{FunctionId, SnapshotId, VersionNumber};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::codec::{PAGE_BYTES, RegionSize};
use crate::digest::Digest;
use crate::seal::KeyId;

/// Maximum of what the sections of a bundle decode to, in bytes. A restore has the images in memory together.
pub(crate) const DECODED_MAX: u64 = 2 << 30;

/// The newest version of the format that this build reads. It writes this version only where it must: for snapshots
/// that are encrypted.
pub const FORMAT: u32 = 5;
/// The version that it writes for snapshots of runtimes, and for snapshots stored as differences to others.
const FORMAT_BASED: u32 = 4;
/// The version that it writes for all other snapshots. It reads this one too.
const FORMAT_PLAIN: u32 = 3;

/// Maximum length of the name of an image or extra file.
const FILE_NAME_MAX: usize = 128;

/// A contiguous range of bytes in the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Offset in the bundle.
    pub offset: u64,
    /// Size in the bundle.
    pub stored_bytes: u64,
    /// Size when decoded.
    pub bytes: u64,
    /// How it is stored.
    pub encoding: SectionEncoding,
    /// BLAKE3 of the stored bytes.
    pub blake3: Digest,
}

/// How a section is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SectionEncoding {
    /// Unchanged.
    Raw,
    /// One LZ4 block.
    Lz4,
}

/// An image file of CRIU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageEntry {
    /// Its name in the image directory.
    pub name: String,
    /// Its bytes.
    pub section: Section,
}

/// A file added by the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraEntry {
    /// Its name.
    pub name: String,
    /// Where its bytes are.
    pub place: ExtraPlace,
}

/// Where an extra file's bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtraPlace {
    /// In the bundle.
    Section(Section),
    /// In its own object.
    Object {
        /// Its size.
        bytes: u64,
        /// BLAKE3 of its bytes.
        blake3: Digest,
    },
}

/// A checkpointed process with private memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessEntry {
    /// Its pid in its own pid namespace: `pagemap-PID.img`.
    pub pid: u32,
    /// Its page map.
    pub page_map: Section,
    /// Its pagemap image as CRIU wrote it: the pages of its pages image, in order.
    pub pagemap: Section,
}

/// What a snapshot was taken of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Origin {
    /// An instance of a function. The snapshot lives as long as the version does.
    Function {
        /// The function.
        function: FunctionId,
        /// The version.
        version: VersionNumber,
        /// The runtime's root filesystem.
        rootfs: LayerRef,
        /// The function's own files.
        layer: LayerRef,
    },
    /// An interpreter that has not loaded a function yet. Functions of its runtime start from it. It stays until
    /// another snapshot replaces it.
    Runtime {
        /// The runtime.
        runtime: Runtime,
        /// The function whose versions may start from it. `None` for all functions.
        function: Option<FunctionId>,
        /// The runtime's root filesystem.
        rootfs: LayerRef,
        /// The user of its processes.
        uid: u32,
    },
    /// A CRIU image directory. The snapshot stays until it is deleted.
    Import {
        /// The name given at the import.
        name: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function { function, version, .. } => write!(f, "{function} {version}"),
            Self::Runtime {
                runtime,
                function: Some(function),
                ..
            } => write!(f, "runtime {} of {function}", runtime.as_str()),
            Self::Runtime { runtime, .. } => write!(f, "runtime {}", runtime.as_str()),
            Self::Import { name } => write!(f, "import {name}"),
        }
    }
}

/// Sizes of a snapshot in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Process memory in the dump.
    pub memory_bytes: u64,
    /// The part of it in regions of zeros only.
    pub zero_bytes: u64,
    /// The part of it that a restore needs before it starts. These pages are in the bundle.
    pub eager_bytes: u64,
    /// Stored payloads of all regions, shared or not.
    pub stored_bytes: u64,
    /// The part of `stored_bytes` that was in the store already, or occurs more than once in this snapshot.
    pub shared_bytes: u64,
}

/// What a snapshot is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The snapshot's id.
    pub id: SnapshotId,
    /// What the snapshot was taken of.
    pub origin: Origin,
    /// The base of the regions stored as differences, if there are any. The snapshot needs the base's chunks, not the
    /// base itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<SnapshotId>,
    /// The key that its objects are encrypted with, if they are. Then no digest is of encrypted bytes, and its chunks
    /// are named by a keyed digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_by: Option<KeyId>,
    /// Time of publication, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// Architecture of the machine.
    pub arch: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Version of CRIU.
    pub criu: String,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Maximum size of a region in bytes.
    pub region_bytes: u64,
    /// How long the processes were frozen, in microseconds.
    pub frozen_us: u64,
    /// Size of the bundle.
    pub bundle_bytes: u64,
    /// Processes, by pid.
    pub processes: Vec<ProcessEntry>,
    /// CRIU's files, by name.
    pub images: Vec<ImageEntry>,
    /// Files added by the worker.
    pub extra: Vec<ExtraEntry>,
    /// Sizes.
    pub totals: Totals,
    /// Key of the working set. The object exists once the working set is known.
    pub working_set_key: String,
}

fn other_format(found: u32) -> &'static str {
    if found < FORMAT_PLAIN {
        "it is of an older version; deploy the function again"
    } else {
        "use the newer version that wrote it, or deploy the function again"
    }
}

/// Why bytes are not a valid manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON, or unexpected fields.
    #[error("manifest does not parse")]
    Json(#[from] serde_json::Error),
    /// Another version of the format.
    #[error("manifest has format {0}, this build reads {FORMAT_PLAIN}-{FORMAT}: {advice}", advice = other_format(*.0))]
    Format(u32),
    /// The bytes have changed since they were written.
    #[error("manifest is corrupt: its digest is {found}, not {expected}")]
    Digest {
        /// Digest of the bytes found.
        found: Digest,
        /// Digest that the manifest states.
        expected: Digest,
    },
    /// A value that no manifest of ours has.
    #[error("manifest is inconsistent: {0}")]
    Value(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    rekindle_snapshot: u32,
    blake3: Digest,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// Parsed first, so that another format is reported as such rather than as an unknown field.
#[derive(Deserialize)]
struct FormatOnly {
    rekindle_snapshot: u32,
}

impl Manifest {
    /// Encodes the manifest.
    pub fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        let manifest = serde_json::value::to_raw_value(self)?;
        let envelope = Envelope {
            rekindle_snapshot: self.format(),
            blake3: Digest::of(manifest.get().as_bytes()),
            manifest: &manifest,
        };
        Ok(serde_json::to_vec(&envelope)?)
    }

    /// Parses and checks a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let format = serde_json::from_slice::<FormatOnly>(bytes)?.rekindle_snapshot;
        if !(FORMAT_PLAIN..=FORMAT).contains(&format) {
            return Err(ManifestError::Format(format));
        }
        let envelope: Envelope<'_> = serde_json::from_slice(bytes)?;
        let found = Digest::of(envelope.manifest.get().as_bytes());
        let expected = envelope.blake3;
        if found != expected {
            return Err(ManifestError::Digest { found, expected });
        }
        let manifest: Self = serde_json::from_str(envelope.manifest.get())?;
        let least = manifest.format();
        // The newest is for encrypted snapshots alone.
        if format < least || (format == FORMAT && least != FORMAT) {
            let what = format!("what it says is not in format {format}");
            return Err(ManifestError::Value(what));
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// The lowest version of the format that can express this manifest.
    fn format(&self) -> u32 {
        match (&self.sealed_by, &self.base, &self.origin) {
            (None, None, Origin::Function { .. } | Origin::Import { .. }) => FORMAT_PLAIN,
            (None, ..) => FORMAT_BASED,
            _ => FORMAT,
        }
    }

    fn check(&self) -> Result<(), ManifestError> {
        let refuse = |what: String| Err(ManifestError::Value(what));
        if self.page_bytes != PAGE_BYTES as u64 || RegionSize::from_bytes(self.region_bytes).is_none() {
            return refuse(format!(
                "pages of {} and regions of {} bytes cannot be",
                self.page_bytes, self.region_bytes
            ));
        }
        let images = self.images.iter().map(|i| (&i.name, Some(&i.section)));
        let extra = self.extra.iter().map(|e| match &e.place {
            ExtraPlace::Section(section) => (&e.name, Some(section)),
            ExtraPlace::Object { .. } => (&e.name, None),
        });
        for (name, section) in images.chain(extra) {
            if !is_file_name(name) {
                return refuse(format!("\"{name}\" is not a usable file name"));
            }
            if section.is_some_and(|s| !self.holds(s)) {
                return refuse(format!("section of {name} lies outside the bundle"));
            }
        }
        let bytes = self.images.iter().map(|image| image.section.bytes);
        if bytes.fold(0, u64::saturating_add) > DECODED_MAX {
            return refuse(format!("its images decode to more than {DECODED_MAX} bytes"));
        }
        for process in &self.processes {
            if !self.holds(&process.page_map) || !self.holds(&process.pagemap) {
                return refuse(format!("page map of process {} lies outside the bundle", process.pid));
            }
        }
        if let Origin::Import { name } = &self.origin
            && !is_file_name(name)
        {
            return refuse(format!("\"{name}\" is not a usable name of an import"));
        }
        let unique = |names: &mut Vec<String>| {
            names.sort();
            let all = names.len();
            names.dedup();
            all == names.len()
        };
        let pids = &mut self.processes.iter().map(|p| p.pid.to_string()).collect();
        let images = &mut self.images.iter().map(|i| i.name.clone()).collect();
        let extra = &mut self.extra.iter().map(|e| e.name.clone()).collect();
        if unique(pids) && unique(images) && unique(extra) {
            Ok(())
        } else {
            refuse("a process or file is there twice".to_owned())
        }
    }

    fn holds(&self, section: &Section) -> bool {
        section
            .offset
            .checked_add(section.stored_bytes)
            .is_some_and(|end| end <= self.bundle_bytes)
    }
}

/// Whether `name` is safe as a file name in any directory, and as part of a key.
pub fn is_file_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=FILE_NAME_MAX).contains(&name.len()) && !name.starts_with('.') && name.chars().all(allowed)
}
