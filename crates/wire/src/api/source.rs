//! The files of a version's folder.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::VersionNumber;

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// A file.
    File,
    /// A file that may be executed.
    Executable,
    /// A folder.
    Folder,
    /// A link to another path.
    Link,
}

/// What a deploy would fail for, as far as that is known without the folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeployCheck {
    /// Each with what to do.
    pub problems: Vec<String>,
}

/// A file of a version's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceFile {
    /// Its path in the folder.
    pub path: String,
    /// Its kind.
    pub kind: SourceKind,
    /// BLAKE3 of its content, of a link that of its target, in hexadecimal. Empty for folders.
    pub digest: String,
}

/// The files of a version's folder as it was uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionFiles {
    /// The version.
    pub version: VersionNumber,
    /// Its files in the order of their paths, without `fn.toml`.
    pub files: Vec<SourceFile>,
}

/// The version whose files another version uses as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reused {
    /// The version that they were built for.
    pub version: VersionNumber,
    /// Whether its snapshot is used as well, so that nothing was booted.
    pub snapshot: bool,
}
