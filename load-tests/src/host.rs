//! A platform that is measured, as its operator sees it: instances, metrics.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use http::Method;
use rekindle_wire::api::{InstanceInfo, Status};
use rekindle_wire::headers::{FORCE_START, INSTANCE, START};

use crate::client::Connection;
use crate::load::gauges;
use crate::ours::Ours;
use crate::platform::Platform;

/// The platform as its operator sees it.
pub(crate) struct Host {
    ours: Ours,
    port: u16,
    authorization: String,
    worker: String,
}

impl Host {
    /// Of this platform.
    pub(crate) async fn of(platform: &Platform) -> Result<Self> {
        let mut host = Self {
            ours: Ours::of(platform, ""),
            port: platform.port(),
            authorization: format!("Bearer {}", platform.key()?),
            worker: String::new(),
        };
        let status: Status = serde_json::from_slice(&host.get("/v1/status").await?).context("no status")?;
        let worker = status.workers.first().context("the platform has no worker")?;
        host.worker = worker.id.to_string();
        Ok(host)
    }

    async fn get(&self, path: &str) -> Result<Vec<u8>> {
        let headers = [("authorization", self.authorization.as_str())];
        let mut connection = Connection::open(self.port).await?;
        let answer = connection.call(Method::GET, path, &headers).await?;
        if !answer.status.is_success() {
            bail!("{path}: {}: {}", answer.status, answer.text());
        }
        Ok(answer.body.to_vec())
    }

    /// A metric of the worker that has no labels.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let text = self.get(&format!("/v1/workers/{}/metrics", self.worker)).await?;
        let text = String::from_utf8(text).context("metrics are no text")?;
        let mut found = BTreeMap::new();
        gauges(&text, &[(name, name)], &mut found);
        found
            .get(name)
            .copied()
            .with_context(|| format!("the worker has no metric {name}"))
    }

    /// A fresh clone of this function that has answered once.
    pub(crate) async fn restore(&self, function: &str) -> Result<String> {
        let headers = [
            ("authorization", self.authorization.as_str()),
            (FORCE_START, "restored"),
        ];
        let mut connection = Connection::open(self.port).await?;
        let answer = connection
            .call(Method::GET, &format!("/function/{function}/"), &headers)
            .await?;
        if !answer.status.is_success() || answer.header(START) != "restored" {
            bail!("{} ({}): {}", answer.status, answer.header(START), answer.text());
        }
        Ok(answer.header(INSTANCE).to_owned())
    }

    /// Removes one, and waits until it is gone.
    pub(crate) async fn delete(&self, instance: &str) -> Result<()> {
        let mut connection = Connection::open(self.port).await?;
        self.ours.delete(&mut connection, instance).await
    }

    /// Removes all.
    pub(crate) async fn delete_all(&self) -> Result<()> {
        let listed: Vec<InstanceInfo> = serde_json::from_slice(&self.get("/v1/instances").await?)?;
        for instance in listed {
            self.delete(instance.id.as_str()).await?;
        }
        Ok(())
    }
}
