//! Releases: which versions of a function serve, and under which names.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::VersionState;
use crate::ids::{AliasName, SnapshotId, VersionNumber};

/// Weight of the only version of an alias.
const WHOLE: u32 = 100;
/// Largest weight of a version in an alias.
pub const WEIGHT_MAX: u32 = 10_000;
/// Maximum number of versions that share an alias.
pub const TARGETS_MAX: usize = 8;

/// A version that an alias names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AliasTarget {
    /// The version.
    pub version: VersionNumber,
    /// Its share of the invocations, relative to the alias's other weights: 1 to 10000.
    pub weight: u32,
}

impl AliasTarget {
    /// The only version of an alias.
    pub fn only(version: VersionNumber) -> Self {
        Self { version, weight: WHOLE }
    }
}

/// An alias of a function's versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alias {
    /// Its name. `live` is what the function's plain URL serves.
    pub name: AliasName,
    /// Its versions, by number.
    pub targets: Vec<AliasTarget>,
}

impl Alias {
    /// An alias of one version.
    pub fn of(name: AliasName, version: VersionNumber) -> Self {
        Self {
            name,
            targets: vec![AliasTarget::only(version)],
        }
    }

    /// The version with the largest weight, and of several the newest.
    pub fn main(&self) -> Option<VersionNumber> {
        let largest = self.targets.iter().max_by_key(|target| (target.weight, target.version));
        largest.map(|target| target.version)
    }

    /// The weight of a version, in percent of all.
    pub fn percent(&self, version: VersionNumber) -> f64 {
        let own = self.targets.iter().filter(|target| target.version == version);
        let own: u32 = own.map(|target| target.weight).sum();
        let all: u32 = self.targets.iter().map(|target| target.weight).sum();
        f64::from(own) * 100.0 / f64::from(all.max(1))
    }
}

/// The versions that an alias is to name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AliasTargets {
    /// At most 8, each once.
    pub targets: Vec<AliasTarget>,
}

/// A version among those that a function keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VersionSummary {
    /// The version.
    pub version: VersionNumber,
    /// Its state. One that is `live` can serve.
    pub state: VersionState,
    /// When it was deployed, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// Its snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Bytes of its snapshot's memory in the store, including those that it shares with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Why it has no snapshot although it asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_error: Option<String>,
    /// Its share of the invocations of the plain URL, in percent.
    pub traffic_percent: f64,
    /// The aliases that name it.
    pub aliases: Vec<AliasName>,
}

/// Requests that an earlier version serves again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RollbackRequest {
    /// The version. By default, the one that served before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionNumber>,
}

/// A completed rollback.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rollback {
    /// What served before.
    pub from: Vec<AliasTarget>,
    /// The version that serves now.
    pub to: VersionNumber,
    /// Whether it is restored from a snapshot. If not, its starts boot.
    pub restored: bool,
}
