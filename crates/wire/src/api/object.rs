//! What the processes of an instance have from the kernel, and what becomes of it in copies.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{FunctionId, InstanceId, VersionNumber};

/// What becomes of a kernel object in the copies of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// No snapshot is made while it is there.
    Refused,
    /// Copies have something else in its place.
    Changed,
    /// Copies have it as it is.
    Kept,
}

/// Kernel objects of a process that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KernelObject {
    /// The process's id in its sandbox.
    pub pid: u32,
    /// The process's name.
    pub program: String,
    /// Where it is: `descriptor 5`, `memory at 7f12a0000000`, or the process itself.
    pub place: String,
    /// What it is.
    pub what: String,
    /// How many there are at this place: more than one where plain ones are counted.
    pub count: u64,
    /// What becomes of it.
    pub fate: Fate,
    /// What becomes of it, in words. Empty where it is kept without more to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub becomes: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Kernel objects of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceObjects {
    /// The instance.
    pub instance: InstanceId,
    /// Its function.
    pub function: FunctionId,
    /// Its version.
    pub version: VersionNumber,
    /// Number of its processes.
    pub processes: u64,
    /// Its objects, those that are in the way first.
    pub objects: Vec<KernelObject>,
    /// Number of objects that are not listed, as there are too many, as far as it is known.
    pub left_out: u64,
}
