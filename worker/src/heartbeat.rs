//! Telling the scheduler what runs here: every second, and at once when something changed.

use std::sync::Arc;
use std::time::Duration;

use rekindle_wire::headers::CLUSTER_TOKEN;
use rekindle_wire::internal::{Heartbeat, HeartbeatAnswer};

use crate::worker::Worker;

/// How long the scheduler may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Reports until dropped.
pub async fn run(worker: Arc<Worker>) {
    // The scheduler is on the cluster's own network, whatever proxy the environment names for the world outside.
    let client = reqwest::Client::builder().no_proxy().build().unwrap_or_default();
    let url = format!("{}/internal/heartbeat", worker.config.scheduler_url);
    let mut reached = true;
    loop {
        match beat(&worker, &client, &url).await {
            Ok(answer) => {
                if !reached {
                    tracing::info!("the scheduler is reached again");
                }
                reached = true;
                for id in answer.stop {
                    if let Some(instance) = worker.instance(&id) {
                        instance.stop("the scheduler does not know it").await;
                        worker.remove(&id);
                    }
                }
            }
            Err(e) => {
                if reached {
                    tracing::warn!(error = %e, "the scheduler is not reached");
                }
                reached = false;
            }
        }
        // At a change at once, but not more often than the scheduler can bear.
        let _ = tokio::time::timeout(worker.config.heartbeat_every, worker.changed.notified()).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn beat(worker: &Worker, client: &reqwest::Client, url: &str) -> Result<HeartbeatAnswer, reqwest::Error> {
    let instances = worker.all_instances();
    let damaged = worker.damage.untold();
    let report = Heartbeat {
        worker: worker.config.id.clone(),
        incarnation: worker.incarnation,
        address: worker.config.advertise.clone(),
        memory_capacity_bytes: worker.config.memory_capacity_bytes,
        instances: instances.iter().map(|i| i.info(&worker.config.id)).collect(),
        damaged,
    };
    let told = tell(worker, client, url, &report).await;
    if told.is_err() {
        worker.damage.not_told(report.damaged);
    }
    told
}

async fn tell(
    worker: &Worker,
    client: &reqwest::Client,
    url: &str,
    report: &Heartbeat,
) -> Result<HeartbeatAnswer, reqwest::Error> {
    client
        .post(url)
        .header(CLUSTER_TOKEN, &worker.config.token)
        .timeout(LIMIT)
        .json(report)
        .send()
        .await?
        .error_for_status()?
        .json()
        .await
}
