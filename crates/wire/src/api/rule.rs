//! Rules of access, as users see them, and what a gateway says of signing in.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{AccessRole, Admitted, Grant, RuleId, Scope};
use crate::ids::{FunctionName, Namespace};

/// A rule to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewRuleRequest {
    /// Whom it lets in.
    pub admits: Admitted,
    /// What they may do.
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

/// A rule of access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessRule {
    /// Its id.
    pub id: RuleId,
    /// Whom it lets in.
    pub admits: Admitted,
    /// What they may do.
    pub role: AccessRole,
    /// The only namespace it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// The only function it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionName>,
    /// Who added it: the id of a key, `admin`, or whom another rule lets in.
    pub created_by: String,
    /// When it was added, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<i64>,
}

impl AccessRule {
    /// Where those that it lets in have the role.
    pub fn scope(&self) -> Scope {
        Scope::of(self.namespace.clone(), self.function.as_ref())
    }
}

/// A rule that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedRule {
    /// Its id.
    pub id: RuleId,
    /// Whether every gateway has confirmed that it lets nobody in by the rule. One that does not is cut off, and takes
    /// neither tokens nor certificates after a minute.
    pub everywhere: bool,
}

/// How callers sign in, and who this one is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthStatus {
    /// Where people sign in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<Login>,
    /// The issuers whose tokens are taken where rules say so.
    #[serde(default)]
    pub issuers: Vec<String>,
    /// What such a token has to be for, as its `aud`.
    #[serde(default)]
    pub audiences: Vec<String>,
    /// Whether certificates of clients are taken.
    #[serde(default)]
    pub certificates: bool,
    /// The caller, if it showed who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Whoami>,
}

/// Where people sign in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Login {
    /// The issuer.
    pub issuer: String,
    /// The client that `fn` is to it.
    pub client_id: String,
}

/// Who a caller is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Whoami {
    /// Its name in the audit log: a key's id, `admin`, `oidc:SUBJECT@ISSUER` or `cert:NAME`.
    pub name: String,
    /// What it may do, and where.
    pub grants: Vec<Grant>,
    /// When its token or certificate ends, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<i64>,
}
