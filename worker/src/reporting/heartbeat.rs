//! Reports to the scheduler what runs here: every second, and at once when something changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rekindle_identity::{CallError, Transport};
use rekindle_wire::ApiError;
use rekindle_wire::headers::CLUSTER_TOKEN;
use rekindle_wire::interface::Endpoint as _;
use rekindle_wire::interface::scheduler::Beat;
use rekindle_wire::internal::{Heartbeat, HeartbeatAnswer, Presence};

use crate::deploy::renewal;
use crate::host::pressure;
use crate::instance::Instance;
use crate::worker::Worker;

/// How long the scheduler may take to respond.
const LIMIT: Duration = Duration::from_secs(2);

/// Maximum length of a refusal that is logged, in bytes, if it is not an error of the platform.
const TOLD_MAX: usize = 200;

/// Why a report was not taken.
#[derive(Debug, thiserror::Error)]
enum BeatError {
    /// The scheduler is unreachable.
    #[error("the scheduler cannot be asked")]
    Call(#[from] CallError),
    /// The scheduler refused.
    #[error("the scheduler refuses the report: {0}")]
    Refused(String),
    /// Its answer is of another version.
    #[error("the scheduler's answer cannot be read")]
    Unread(#[source] serde_json::Error),
}

/// Creates the client for the scheduler. It is on the cluster's own network, so the client ignores proxies in the
/// environment, which are for the outside.
///
/// # Errors
/// Returns an error when the host's HTTP settings cannot be used.
pub fn client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()
}

/// Reports until dropped.
pub async fn run(worker: Arc<Worker>, client: Transport) {
    let schedulers = addresses(&worker.config.scheduler_url);
    let mut reached = true;
    let mut at = 0;
    loop {
        let said = *worker.presence.lock();
        match beat(&worker, &client, schedulers[at % schedulers.len()]).await {
            Ok(answer) => {
                worker
                    .leaving_is_known
                    .store(said != Presence::Serving, Ordering::Relaxed);
                if !reached {
                    tracing::info!("the scheduler is reached again");
                }
                reached = true;
                if !answer.forget.is_empty() {
                    let worker = Arc::clone(&worker);
                    // The last user of a template gives its memory back.
                    tokio::task::spawn_blocking(move || {
                        answer.forget.iter().for_each(|id| worker.snapshots.forget(id));
                    });
                }
                for id in answer.stop {
                    if let Some(instance) = worker.instance(&id) {
                        // In parallel with each other and with the next heartbeat: an instance's end may take a while.
                        tokio::spawn(stop(Arc::clone(&worker), instance));
                    }
                }
            }
            Err(e) => {
                if reached {
                    let error = &e as &dyn std::error::Error;
                    tracing::warn!(error, "the scheduler is not reached");
                }
                reached = false;
                // If there are several schedulers, another may lead.
                at = at.wrapping_add(1);
            }
        }
        worker.scheduler_is_reached.store(reached, Ordering::Relaxed);
        worker.is_known.fetch_or(reached, Ordering::Relaxed);
        // Reports at once after a change, but not more often than the scheduler can bear.
        let _ = tokio::time::timeout(worker.config.heartbeat_every, worker.changed.notified()).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reports that the worker has stopped, so that nobody waits to learn that its instances are gone. Without this report,
/// its silence tells the same.
pub async fn farewell(worker: &Worker, client: &Transport) {
    *worker.presence.lock() = Presence::Left;
    for scheduler in addresses(&worker.config.scheduler_url) {
        match beat(worker, client, scheduler).await {
            Ok(_) => return,
            Err(e) => tracing::debug!(
                error = &e as &dyn std::error::Error,
                "the scheduler does not hear that the worker stops"
            ),
        }
    }
}

/// Returns the schedulers' addresses. `schedulers` contains one, or several separated by commas.
fn addresses(schedulers: &str) -> Vec<&str> {
    let addresses = schedulers.trim_start_matches("http://").split(',');
    addresses.map(str::trim).collect()
}

async fn stop(worker: Arc<Worker>, instance: Arc<Instance>) {
    instance.stop("the scheduler does not know it").await;
    worker.remove(&instance.id);
}

async fn beat(worker: &Worker, client: &Transport, scheduler: &str) -> Result<HeartbeatAnswer, BeatError> {
    let number = worker.reports.fetch_add(1, Ordering::Relaxed) + 1;
    let mut instances = worker.all_instances();
    let unlisted = worker.unlisted.lock().clone();
    instances.retain(|instance| !unlisted.contains(&instance.id));
    let damaged = worker.damage.untold();
    let report = Heartbeat {
        worker: worker.config.id.clone(),
        incarnation: worker.incarnation,
        number,
        address: worker.config.advertise.clone(),
        memory_capacity_bytes: worker.config.memory_capacity_bytes,
        offer: worker.config.offer.clone(),
        presence: *worker.presence.lock(),
        instances: instances.iter().map(|i| i.info(&worker.config.id)).collect(),
        levels: worker.metrics.levels(worker),
        pressure: pressure::read(&worker.config.memory_figures, &worker.config.cgroup_root),
        kept: worker.kept.untold(&worker.snapshots),
        damaged,
        snapshots: renewal::report(worker),
    };
    let told = tell(worker, client, scheduler, &report).await;
    match &told {
        Ok(answer) => {
            worker.kept.is_known(answer.kept_revision);
        }
        Err(_) => {
            worker.damage.not_told(report.damaged);
            worker.refusals.not_told(report.snapshots.refused);
        }
    }
    told
}

async fn tell(
    worker: &Worker,
    client: &Transport,
    scheduler: &str,
    report: &Heartbeat,
) -> Result<HeartbeatAnswer, BeatError> {
    let call = client.call(scheduler, &Beat {}, report);
    let call = call.header(CLUSTER_TOKEN, &worker.config.token);
    let answer = client.send(call.timeout(LIMIT)).await?;
    let is_success = answer.status().is_success();
    let body = answer.bytes().await.map_err(CallError::Plain)?;
    if is_success {
        return Beat::decode(&body).map_err(BeatError::Unread);
    }
    let refused = serde_json::from_slice(&body).map(|error: ApiError| error.to_string());
    let text = || String::from_utf8_lossy(&body[..body.len().min(TOLD_MAX)]).into_owned();
    Err(BeatError::Refused(refused.unwrap_or_else(|_| text())))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "FN_TEST_BEHIND_A_PROXY";

    /// The test runs itself again, since a process's environment cannot be changed safely once it has threads.
    #[tokio::test]
    async fn no_proxy_of_the_environment_is_asked() {
        if std::env::var_os(CHILD).is_none() {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args([
                "--exact",
                "reporting::heartbeat::tests::no_proxy_of_the_environment_is_asked",
                "--nocapture",
            ]);
            for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
                // Nobody listens there.
                again.env(name, "http://127.0.0.1:1");
            }
            let ran = again
                .env_remove("no_proxy")
                .env_remove("NO_PROXY")
                .env(CHILD, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            assert!(ran.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        });
        assert_eq!(client().unwrap().get(&url).send().await.unwrap().status(), 204);
    }
}
