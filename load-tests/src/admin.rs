//! A platform's admin API, as its operator uses it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::{Method, StatusCode};
use rekindle_wire::WorkerId;
use rekindle_wire::api::{InstanceInfo, Status};
use serde::de::DeserializeOwned;

use crate::client::{Connection, Reply};
use crate::load::gauges;

/// Limit for removing an instance.
const GONE_LIMIT: Duration = Duration::from_secs(10);

/// The API's address and key.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    port: u16,
    authorization: String,
}

impl Admin {
    /// The API of the gateway at this port of this machine.
    pub(crate) fn new(port: u16, key: &str) -> Self {
        Self {
            port,
            authorization: format!("Bearer {key}"),
        }
    }

    /// The header with the key.
    pub(crate) fn authorization(&self) -> (&str, &str) {
        ("authorization", &self.authorization)
    }

    async fn answer(&self, path: &str) -> Result<Reply> {
        let mut connection = Connection::open(self.port).await?;
        let answer = connection.call(Method::GET, path, &[self.authorization()]).await?;
        if !answer.status.is_success() {
            bail!("{path}: {}: {}", answer.status, answer.text());
        }
        Ok(answer)
    }

    /// The value at this path.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let answer = self.answer(path).await?;
        serde_json::from_slice(&answer.body).with_context(|| format!("{path}: not understood"))
    }

    /// Waits until `workers` workers report.
    pub(crate) async fn until_alive(&self, workers: usize, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let status: Result<Status> = self.get("/v1/status").await;
            match status {
                Ok(status) if status.workers.iter().filter(|w| w.alive).count() == workers => return Ok(()),
                Ok(_) if Instant::now() > deadline => bail!("{workers} workers do not report within {limit:?}"),
                Err(error) if Instant::now() > deadline => return Err(error),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Its workers.
    pub(crate) async fn workers(&self) -> Result<Vec<WorkerId>> {
        let status: Status = self.get("/v1/status").await?;
        Ok(status.workers.into_iter().map(|w| w.id).collect())
    }

    /// The sum of a worker's samples for each of these names; missing ones are left out.
    pub(crate) async fn metrics(&self, worker: &WorkerId, names: &[&str]) -> Result<BTreeMap<String, f64>> {
        let answer = self.answer(&format!("/v1/workers/{worker}/metrics")).await?;
        let text = String::from_utf8(answer.body.to_vec()).context("metrics are no text")?;
        let names: Vec<(&str, &str)> = names.iter().map(|n| (*n, *n)).collect();
        let mut found = BTreeMap::new();
        gauges(&text, &names, &mut found);
        Ok(found)
    }

    async fn all_instances(&self) -> Result<Vec<InstanceInfo>> {
        self.get("/v1/instances").await
    }

    /// The instances of a function.
    pub(crate) async fn instances(&self, function: &str) -> Result<Vec<InstanceInfo>> {
        let all = self.all_instances().await?;
        Ok(all.into_iter().filter(|i| i.function.as_str() == function).collect())
    }

    /// Removes an instance and waits until it is gone, so that its end affects no measurement.
    pub(crate) async fn delete(&self, instance: &str) -> Result<()> {
        let mut connection = Connection::open(self.port).await?;
        let path = format!("/v1/instances/{instance}");
        let answer = connection.call(Method::DELETE, &path, &[self.authorization()]).await?;
        if !answer.status.is_success() && answer.status != StatusCode::NOT_FOUND {
            bail!("{path}: cannot be deleted: {}: {}", answer.status, answer.text());
        }
        let deadline = Instant::now() + GONE_LIMIT;
        while self.all_instances().await?.iter().any(|i| i.id.as_str() == instance) {
            if Instant::now() > deadline {
                bail!("instance {instance} is still there {GONE_LIMIT:?} after its deletion");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Removes every instance and waits until they are gone.
    pub(crate) async fn delete_all(&self) -> Result<()> {
        for instance in self.all_instances().await? {
            self.delete(instance.id.as_str()).await?;
        }
        Ok(())
    }
}
