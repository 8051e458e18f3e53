//! Secrets, as users see them: never with a value.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::FunctionId;
use crate::secret::SecretName;

/// A secret of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretSummary {
    /// Its name.
    pub name: SecretName,
    /// How often it was set. Goes on where it was if the secret is removed and set again.
    pub version: u32,
    /// When it was set last, in seconds since the Unix epoch.
    pub set_unix_s: i64,
    /// Whether the scheduler's master key opens it. One that another key sealed must be set again.
    pub readable: bool,
    /// The functions with a version that serves and names it.
    #[serde(default)]
    pub used_by: Vec<FunctionId>,
}
