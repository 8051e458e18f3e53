//! Keys of the API and rules of access, as gateways are told of them.

use serde::{Deserialize, Serialize};

use crate::access::{AccessRole, Admitted, KeyId, RuleId, Scope};

/// Keys that have changed since the gateway's revision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeysResponse {
    /// The scheduler's lead. Revisions of different leads have nothing in common.
    pub epoch: String,
    /// The revision that the gateway has when it has applied this.
    pub revision: u64,
    /// Whether `keys` are all there are. Otherwise they are added to those that the gateway knows.
    #[serde(default)]
    pub whole: bool,
    /// New keys.
    #[serde(default)]
    pub keys: Vec<KnownKey>,
    /// Keys that are revoked.
    #[serde(default)]
    pub revoked: Vec<KeyId>,
    /// Every rule of access, if one has changed. `None` as well from a scheduler without rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<KnownRule>>,
}

/// What a gateway knows of a rule of access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownRule {
    /// Its id.
    pub id: RuleId,
    /// Whom it lets in.
    pub admits: Admitted,
    /// What they may do.
    pub role: AccessRole,
    /// Where.
    pub scope: Scope,
    /// When it expires, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<i64>,
}

/// What a gateway knows of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownKey {
    /// Its id.
    pub id: KeyId,
    /// BLAKE3 hash of the key, in hexadecimal digits.
    pub hash: String,
    /// What its holder may do.
    pub role: AccessRole,
    /// Where.
    pub scope: Scope,
    /// When it expires, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<i64>,
}
