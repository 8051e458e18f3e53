//! Keys of the API and namespaces, as users see them.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{AccessRole, KeyId};
use crate::ids::{FunctionName, Namespace};

/// Longest name of a key, in characters.
pub const KEY_NAME_MAX: usize = 64;
/// Longest life of a key with an expiry, in seconds: ten years.
pub const KEY_LIFE_MAX_S: u64 = 3_650 * 86_400;

/// A key to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewKeyRequest {
    /// What it is for, in at most 64 characters.
    #[serde(default)]
    pub name: String,
    /// What its holder may do.
    pub role: AccessRole,
    /// The only namespace it is for. Every one, and the platform's hosts, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// The only function it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionName>,
    /// After how many seconds it expires. Never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// A key that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewKey {
    /// The key itself. Nothing tells it again.
    pub key: String,
    /// Everything else about it.
    pub summary: KeySummary,
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewKey")
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

/// A key, without the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeySummary {
    /// Its id.
    pub id: KeyId,
    /// What it is for.
    pub name: String,
    /// What its holder may do.
    pub role: AccessRole,
    /// The only namespace it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// The only function it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionName>,
    /// The id of the key that it was made with, or `admin`.
    pub created_by: String,
    /// When it was made, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<i64>,
    /// When it was used last, to the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_unix_s: Option<i64>,
}

/// A key that was revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokedKey {
    /// Its id.
    pub id: KeyId,
    /// Whether every gateway has confirmed that it refuses the key. One that does not is cut off, and refuses all keys
    /// after a minute. A scheduler that has just begun to lead does not know of all gateways.
    pub everywhere: bool,
}

/// A namespace in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceSummary {
    /// Its name.
    pub name: Namespace,
    /// Number of its functions that have a version.
    pub functions: u32,
    /// Whether snapshots that are made in it are encrypted.
    #[serde(default)]
    pub encrypted: bool,
}
