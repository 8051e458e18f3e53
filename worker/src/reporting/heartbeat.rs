//! Reports to the scheduler what runs here: every second, and at once when something changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rekindle_identity::{CallError, Transport};
use rekindle_init::seccomp::FilterChoice;
use rekindle_wire::headers::CLUSTER_TOKEN;
use rekindle_wire::interface::Endpoint as _;
use rekindle_wire::interface::scheduler::Beat;
use rekindle_wire::internal::{Heartbeat, HeartbeatResponse, HostOffer, Presence};
use rekindle_wire::{ApiError, WorkerId};

use super::levels::Levels;
use super::membership::Membership;
use super::restorable::RestorableReport;
use super::snapshots;
use crate::calls::Gateways;
use crate::host::pressure::PressureFiles;
use crate::instance::damage::DamageExaminer;
use crate::instance::{Instance, Instances};
use crate::snapshots::{Refusals, Snapshots};

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

/// What a worker always says of itself.
#[derive(Debug, Clone)]
pub struct WorkerDescription {
    /// Its id.
    pub worker: WorkerId,
    /// A new value at each start.
    pub incarnation: u64,
    /// Address at which gateways and the scheduler reach it.
    pub address: String,
    /// Memory it may give to instances, in bytes.
    pub memory_capacity_bytes: u64,
    /// Properties of its host, apart from memory.
    pub offer: HostOffer,
}

/// Reports to the scheduler.
pub struct Reporter {
    /// Transport of calls to the scheduler.
    pub client: Transport,
    /// Addresses of schedulers, separated by commas.
    pub scheduler_url: String,
    /// The cluster's secret.
    pub token: String,
    /// Interval of reports.
    pub every: Duration,
    /// What stays the same.
    pub about: WorkerDescription,
    /// What this worker and the scheduler know of each other.
    pub membership: Arc<Membership>,
    /// The gateways that take calls of functions.
    pub gateways: Arc<Gateways>,
    /// All instances.
    pub instances: Arc<Instances>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// What the scheduler knows of them.
    pub kept: RestorableReport,
    /// Snapshots that are damaged, or may be.
    pub damage: Arc<DamageExaminer>,
    /// Snapshots whose images were rejected.
    pub refusals: Arc<Refusals>,
    /// The system call filter of functions.
    pub filter: FilterChoice,
    /// How full the worker's pools and caches are.
    pub levels: Levels,
    /// The host's memory pressure.
    pub pressure: PressureFiles,
    /// Number of reports so far.
    pub reports: AtomicU64,
}

impl Reporter {
    /// Reports until dropped.
    pub async fn run(&self) {
        let schedulers = addresses(&self.scheduler_url);
        let mut reached = true;
        let mut at = 0;
        loop {
            let said = self.membership.presence();
            match self.beat(schedulers[at % schedulers.len()]).await {
                Ok(answer) => {
                    self.membership.record_reported(said);
                    self.gateways.learn(&answer.gateways);
                    if !reached {
                        tracing::info!("the scheduler is reached again");
                    }
                    reached = true;
                    if !answer.forget.is_empty() {
                        let snapshots = Arc::clone(&self.snapshots);
                        // The last user of a template gives its memory back.
                        tokio::task::spawn_blocking(move || {
                            answer.forget.iter().for_each(|id| snapshots.forget(id));
                        });
                    }
                    for id in answer.stop {
                        if let Some(instance) = self.instances.get(&id) {
                            // In parallel with each other and with the next heartbeat: an instance's end may take a
                            // while.
                            tokio::spawn(stop(Arc::clone(&self.instances), instance));
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
            self.membership.reached(reached);
            // Reports at once after a change, but not more often than the scheduler can bear.
            let _ = tokio::time::timeout(self.every, self.instances.changed.notified()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Reports that the worker has stopped, so that nobody waits to learn that its instances are gone. Without this
    /// report, its silence tells the same.
    pub async fn report_stopped(&self) {
        self.membership.become_present(Presence::Left);
        for scheduler in addresses(&self.scheduler_url) {
            match self.beat(scheduler).await {
                Ok(_) => return,
                Err(e) => tracing::debug!(
                    error = &e as &dyn std::error::Error,
                    "the scheduler does not hear that the worker stops"
                ),
            }
        }
    }

    async fn beat(&self, scheduler: &str) -> Result<HeartbeatResponse, BeatError> {
        let number = self.reports.fetch_add(1, Ordering::Relaxed) + 1;
        let WorkerDescription {
            worker,
            incarnation,
            address,
            memory_capacity_bytes,
            offer,
        } = &self.about;
        let instances = self.instances.listed();
        let damaged = self.damage.take_unreported();
        let report = Heartbeat {
            worker: worker.clone(),
            incarnation: *incarnation,
            number,
            address: address.clone(),
            memory_capacity_bytes: *memory_capacity_bytes,
            offer: offer.clone(),
            presence: self.membership.presence(),
            instances: instances.iter().map(|i| i.info(worker)).collect(),
            levels: self.levels.read(),
            pressure: self.pressure.read(),
            kept: self.kept.unreported(&self.snapshots),
            damaged,
            secrets: instances
                .iter()
                .filter_map(|i| Some((i.id.clone(), i.secrets_revision()?)))
                .collect(),
            tickets: instances
                .iter()
                .filter_map(|i| Some((i.id.clone(), i.ticket.clone()?)))
                .collect(),
            snapshots: snapshots::report(self.filter, &self.instances, &self.refusals),
        };
        let told = self.tell(scheduler, &report).await;
        match &told {
            Ok(answer) => {
                self.kept.is_known(answer.kept_revision);
            }
            Err(_) => {
                self.damage.keep_unreported(report.damaged);
                self.refusals.keep_unreported(report.snapshots.refused);
            }
        }
        told
    }

    async fn tell(&self, scheduler: &str, report: &Heartbeat) -> Result<HeartbeatResponse, BeatError> {
        let call = self.client.call(scheduler, &Beat {}, report);
        let call = call.header(CLUSTER_TOKEN, &self.token);
        let answer = self.client.send(call.timeout(LIMIT)).await?;
        let is_success = answer.status().is_success();
        let body = answer.bytes().await.map_err(CallError::Plain)?;
        if is_success {
            return Beat::decode(&body).map_err(BeatError::Unread);
        }
        let refused = serde_json::from_slice(&body).map(|error: ApiError| error.to_string());
        let text = || String::from_utf8_lossy(&body[..body.len().min(TOLD_MAX)]).into_owned();
        Err(BeatError::Refused(refused.unwrap_or_else(|_| text())))
    }
}

/// Returns the schedulers' addresses. `schedulers` contains one, or several separated by commas.
fn addresses(schedulers: &str) -> Vec<&str> {
    let addresses = schedulers.trim_start_matches("http://").split(',');
    addresses.map(str::trim).collect()
}

async fn stop(instances: Arc<Instances>, instance: Arc<Instance>) {
    instance.stop("the scheduler does not know it").await;
    instances.remove_this(&instance);
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
