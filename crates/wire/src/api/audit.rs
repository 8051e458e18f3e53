//! The audit log, as users see it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::Namespace;

/// Largest number of entries in an answer.
pub const AUDIT_PAGE_MAX: u32 = 1_000;

/// A change that somebody asked for over the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number. The first one is 1, and none is left out.
    pub number: u64,
    /// When it ended, in milliseconds since the Unix epoch.
    pub unix_ms: i64,
    /// The id of the key that asked for it, or `admin` for the platform's own.
    pub actor: String,
    /// The namespace it is about. The platform when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// The operation, as in `/v1/openapi.json`.
    pub action: String,
    /// What it was about, such as a function and an alias. Never a value of a secret, nor a key.
    pub object: String,
    /// `ok`, or the code of the error.
    pub outcome: String,
    /// The request that asked for it.
    pub request_id: String,
    /// Hash of the entry before.
    pub previous: String,
    /// BLAKE3 hash of all of this but itself.
    pub hash: String,
}

/// A place in the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPlace {
    /// The number of the entry; 0 before the first.
    pub number: u64,
    /// Its hash.
    pub hash: String,
}

/// Entries of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The last entry that was removed because of its age: the log begins after it.
    pub begins_after: AuditPlace,
    /// The entries, oldest first.
    pub entries: Vec<AuditEntry>,
}
