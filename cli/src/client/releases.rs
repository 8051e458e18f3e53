//! Calls about releases.

use std::time::Duration;

use anyhow::Result;
use rekindle_wire::api::{
    Alias, AliasTarget, AliasTargets, DeployCheck, Rollback, RollbackRequest, VersionFiles, VersionSummary,
};
use rekindle_wire::function_config::FunctionConfig;
use rekindle_wire::interface::users::{
    CheckDeploy, ListAliases, ListFiles, ListVersions, RemoveAlias, RollBack, SetAlias,
};
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, VersionNumber};

use super::{CALL_TIMEOUT, Client};

/// For a list of files: the folder is read from the object store.
const FILES_TIMEOUT: Duration = Duration::from_secs(120);

impl Client {
    /// What the platform lacks for a deploy of the function. Nothing from one that cannot tell yet.
    pub(crate) async fn check_deploy(&self, function: &FunctionId, config: &FunctionConfig) -> Result<Vec<String>> {
        let (name, namespace) = function.split();
        let secrets: Vec<_> = config.secrets.iter().map(|secret| secret.as_str()).collect();
        let check = CheckDeploy {
            name,
            namespace,
            base: config.image.is_none().then_some(config.base),
            secrets: Some(secrets.join(",")).filter(|names| !names.is_empty()),
        };
        match self.ask(&check).await {
            Ok(DeployCheck { problems }) => Ok(problems),
            Err(error) => match error.downcast_ref::<ApiError>() {
                Some(api) if api.code == ErrorCode::NotFound => Ok(Vec::new()),
                _ => Err(error),
            },
        }
    }

    /// Every version of a function that is kept, newest first.
    pub(crate) async fn versions(&self, name: &FunctionId) -> Result<Vec<VersionSummary>> {
        let (name, namespace) = name.split();
        self.ask(&ListVersions { name, namespace }).await
    }

    /// The files of the folder that a version was made of.
    pub(crate) async fn files(&self, name: &FunctionId, version: VersionNumber) -> Result<VersionFiles> {
        let (name, namespace) = name.split();
        let files = ListFiles {
            name,
            version,
            namespace,
        };
        self.call(&files, &(), FILES_TIMEOUT).await
    }

    /// Has an earlier version serve again, by default the one that served before.
    pub(crate) async fn roll_back(&self, name: &FunctionId, version: Option<VersionNumber>) -> Result<Rollback> {
        let (name, namespace) = name.split();
        let request = RollbackRequest { version };
        self.call(&RollBack { name, namespace }, &request, CALL_TIMEOUT).await
    }

    pub(crate) async fn aliases(&self, name: &FunctionId) -> Result<Vec<Alias>> {
        let (name, namespace) = name.split();
        self.ask(&ListAliases { name, namespace }).await
    }

    /// Has an alias name these versions.
    pub(crate) async fn set_alias(
        &self,
        name: &FunctionId,
        alias: &AliasName,
        targets: Vec<AliasTarget>,
    ) -> Result<Alias> {
        let (name, namespace) = name.split();
        let alias = alias.clone();
        let set = SetAlias { name, alias, namespace };
        self.call(&set, &AliasTargets { targets }, CALL_TIMEOUT).await
    }

    pub(crate) async fn remove_alias(&self, name: &FunctionId, alias: &AliasName) -> Result<()> {
        let (name, namespace) = name.split();
        let alias = alias.clone();
        self.ask(&RemoveAlias { name, alias, namespace }).await
    }
}
