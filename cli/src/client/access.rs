//! Calls about keys, rules of access and namespaces.

use anyhow::{Context as _, Result};
use rekindle_wire::Namespace;
use rekindle_wire::access::{KeyId, RuleId};
use rekindle_wire::api::{
    AccessRule, AuditPage, AuthStatus, KeySummary, NamespaceSummary, NewKey, NewKeyRequest, NewRuleRequest,
    RemovedRule, RevokedKey,
};
use rekindle_wire::interface::Endpoint as _;
use rekindle_wire::interface::users::{
    AddRule, CreateKey, CreateNamespace, EncryptNamespace, ListKeys, ListNamespaces, ListRules, ReadAudit, ReadAuth,
    RemoveNamespace, RemoveRule, RevokeKey,
};

use super::{CALL_TIMEOUT, Client};

impl Client {
    pub(crate) async fn create_key(&self, wanted: &NewKeyRequest) -> Result<NewKey> {
        self.call(&CreateKey {}, wanted, CALL_TIMEOUT).await
    }

    /// The keys within the scope of this client's, newest first.
    pub(crate) async fn keys(&self) -> Result<Vec<KeySummary>> {
        self.ask(&ListKeys {}).await
    }

    pub(crate) async fn revoke_key(&self, id: &KeyId) -> Result<RevokedKey> {
        self.ask(&RevokeKey { id: id.clone() }).await
    }

    pub(crate) async fn add_rule(&self, wanted: &NewRuleRequest) -> Result<AccessRule> {
        self.call(&AddRule {}, wanted, CALL_TIMEOUT).await
    }

    /// The rules of access within the scope of this client, newest first.
    pub(crate) async fn rules(&self) -> Result<Vec<AccessRule>> {
        self.ask(&ListRules {}).await
    }

    pub(crate) async fn remove_rule(&self, id: &RuleId) -> Result<RemovedRule> {
        self.ask(&RemoveRule { id: id.clone() }).await
    }

    /// How callers sign in, and who this client is.
    pub(crate) async fn auth(&self) -> Result<AuthStatus> {
        self.ask(&ReadAuth {}).await
    }

    /// How callers sign in.
    pub(crate) async fn anonymous_auth(&self) -> Result<AuthStatus> {
        let request = self.anonymous(ReadAuth::OPERATION.method, &ReadAuth {}.uri());
        let answer = self.checked(self.send(request.timeout(CALL_TIMEOUT)).await?).await?;
        answer
            .json()
            .await
            .context("the gateway does not say how to sign in as this version of fn understands")
    }

    /// The namespaces within the scope of this client's key.
    pub(crate) async fn namespaces(&self) -> Result<Vec<NamespaceSummary>> {
        self.ask(&ListNamespaces {}).await
    }

    /// Entries of the audit log after this number and at or after this time, oldest first; about one namespace or all.
    pub(crate) async fn audit(
        &self,
        after: u64,
        since_unix_ms: Option<i64>,
        of: Option<&Namespace>,
    ) -> Result<AuditPage> {
        let wanted = ReadAudit {
            after: Some(after),
            since_unix_ms,
            limit: None,
            of: of.cloned(),
        };
        self.ask(&wanted).await
    }

    /// Makes a namespace, unless there is one of that name.
    pub(crate) async fn create_namespace(&self, name: &Namespace) -> Result<NamespaceSummary> {
        let namespace = name.clone();
        self.ask(&CreateNamespace { namespace }).await
    }

    pub(crate) async fn encrypt_namespace(&self, name: &Namespace) -> Result<NamespaceSummary> {
        let namespace = name.clone();
        self.ask(&EncryptNamespace { namespace }).await
    }

    /// Removes an empty namespace.
    pub(crate) async fn remove_namespace(&self, name: &Namespace) -> Result<()> {
        let namespace = name.clone();
        self.ask(&RemoveNamespace { namespace }).await
    }
}
