//! Calls about keys and namespaces.

use anyhow::Result;
use rekindle_wire::Namespace;
use rekindle_wire::access::KeyId;
use rekindle_wire::api::{AuditPage, KeySummary, NamespaceSummary, NewKey, NewKeyRequest, RevokedKey};
use rekindle_wire::interface::users::{
    CreateKey, CreateNamespace, ListKeys, ListNamespaces, ReadAudit, RemoveNamespace, RevokeKey,
};

use super::{CALL_TIMEOUT, Client};

impl Client {
    /// Makes a key.
    pub(crate) async fn create_key(&self, wanted: &NewKeyRequest) -> Result<NewKey> {
        self.call(&CreateKey {}, wanted, CALL_TIMEOUT).await
    }

    /// The keys within the scope of this client's, newest first.
    pub(crate) async fn keys(&self) -> Result<Vec<KeySummary>> {
        self.ask(&ListKeys {}).await
    }

    /// Revokes a key.
    pub(crate) async fn revoke_key(&self, id: &KeyId) -> Result<RevokedKey> {
        self.ask(&RevokeKey { id: id.clone() }).await
    }

    /// The namespaces within the scope of this client's key.
    pub(crate) async fn namespaces(&self) -> Result<Vec<NamespaceSummary>> {
        self.ask(&ListNamespaces {}).await
    }

    /// Entries of the audit log after this number and at or after this time, oldest first.
    pub(crate) async fn audit(&self, after: u64, since_unix_ms: Option<i64>) -> Result<AuditPage> {
        let wanted = ReadAudit {
            after: Some(after),
            since_unix_ms,
            limit: None,
        };
        self.ask(&wanted).await
    }

    /// Makes a namespace, unless there is one of that name.
    pub(crate) async fn create_namespace(&self, name: &Namespace) -> Result<NamespaceSummary> {
        let namespace = name.clone();
        self.ask(&CreateNamespace { namespace }).await
    }

    /// Removes an empty namespace.
    pub(crate) async fn remove_namespace(&self, name: &Namespace) -> Result<()> {
        let namespace = name.clone();
        self.ask(&RemoveNamespace { namespace }).await
    }
}
