//! Calls about secrets.

use anyhow::{Context as _, Result};
use rekindle_wire::api::SecretSummary;
use rekindle_wire::interface::Endpoint as _;
use rekindle_wire::interface::users::{ListSecrets, RemoveSecret, SetSecret};
use rekindle_wire::{FunctionId, SecretName, SecretValue};

use super::{CALL_TIMEOUT, Client};

impl Client {
    pub(crate) async fn secrets(&self) -> Result<Vec<SecretSummary>> {
        let namespace = self.other_namespace();
        self.ask(&ListSecrets { namespace }).await
    }

    /// Every secret of a function's namespace.
    pub(crate) async fn secrets_beside(&self, function: &FunctionId) -> Result<Vec<SecretSummary>> {
        let (_, namespace) = function.split();
        self.ask(&ListSecrets { namespace }).await
    }

    /// Sets a secret, with `existing` only one that there is.
    pub(crate) async fn set_secret(
        &self,
        name: &SecretName,
        value: &SecretValue,
        existing: bool,
    ) -> Result<SecretSummary> {
        let set = SetSecret {
            name: name.clone(),
            namespace: self.other_namespace(),
            existing: existing.then_some(true),
        };
        let request = self
            .request(SetSecret::OPERATION.method, &set.uri())
            .header("content-type", "application/octet-stream")
            .timeout(CALL_TIMEOUT)
            .body(value.bytes().to_vec());
        let response = self.checked(self.send(request).await?).await?;
        let summary = response.json().await;
        summary.context("the answer is not what this version of fn understands")
    }

    pub(crate) async fn remove_secret(&self, name: &SecretName, force: bool) -> Result<()> {
        let remove = RemoveSecret {
            name: name.clone(),
            namespace: self.other_namespace(),
            force: force.then_some(true),
        };
        self.ask(&remove).await
    }
}
