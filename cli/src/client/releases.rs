//! Calls about releases.

use anyhow::Result;
use rekindle_wire::api::{Rollback, RollbackRequest, VersionSummary};
use rekindle_wire::interface::users::{ListVersions, RollBack};
use rekindle_wire::{FunctionId, VersionNumber};

use super::{CALL_TIMEOUT, Client};

impl Client {
    /// Every version of a function that is kept, newest first.
    pub(crate) async fn versions(&self, name: &FunctionId) -> Result<Vec<VersionSummary>> {
        let (name, namespace) = name.split();
        self.ask(&ListVersions { name, namespace }).await
    }

    /// Has an earlier version serve again, by default the one that served before.
    pub(crate) async fn roll_back(&self, name: &FunctionId, version: Option<VersionNumber>) -> Result<Rollback> {
        let (name, namespace) = name.split();
        let request = RollbackRequest { version };
        self.call(&RollBack { name, namespace }, &request, CALL_TIMEOUT).await
    }
}
