//! A measured platform as its operator sees it: instances, metrics.

use anyhow::{Context as _, Result, bail};
use http::Method;
use rekindle_wire::WorkerId;
use rekindle_wire::headers::{FORCE_START, INSTANCE, START};

use crate::admin::Admin;
use crate::client::Connection;
use crate::platform::Platform;

/// The platform as its operator sees it.
pub(crate) struct Host {
    pub(crate) admin: Admin,
    port: u16,
    worker: WorkerId,
}

impl Host {
    /// The view of this platform.
    pub(crate) async fn of(platform: &Platform) -> Result<Self> {
        let admin = platform.admin()?;
        let worker = admin.workers().await?.into_iter().next();
        Ok(Self {
            admin,
            port: platform.port(),
            worker: worker.context("the platform has no worker")?,
        })
    }

    /// A metric of the worker without labels.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let found = self.admin.metrics(&self.worker, &[name]).await?;
        found
            .get(name)
            .copied()
            .with_context(|| format!("the worker has no metric {name}"))
    }

    /// Makes a fresh clone of this function that has answered once.
    pub(crate) async fn restore(&self, function: &str) -> Result<String> {
        let headers = [self.admin.authorization(), (FORCE_START, "restored")];
        let mut connection = Connection::open(self.port).await?;
        let answer = connection
            .call(Method::GET, &format!("/function/{function}/"), &headers)
            .await?;
        if !answer.status.is_success() || answer.header(START) != "restored" {
            bail!("{} ({}): {}", answer.status, answer.header(START), answer.text());
        }
        Ok(answer.header(INSTANCE).to_owned())
    }
}
