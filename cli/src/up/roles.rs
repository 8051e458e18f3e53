//! The roles in this process: started in order, stopped in reverse order, and none may end before it is told to.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use futures::future::select_all;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Limit for each role to stop. What it had to keep is durable long before.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// The runtime that roles run in.
///
/// # Errors
/// If the kernel refuses its threads.
pub(super) fn runtime() -> Result<Runtime> {
    super::heap::settle();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the async runtime could not be started")
}

struct Role {
    name: &'static str,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

pub(super) struct Roles {
    running: Vec<Role>,
    terminate: Signal,
    interrupt: Signal,
    stop_limit: Duration,
}

impl Roles {
    /// No roles yet. From here on SIGTERM and SIGINT request an orderly shutdown.
    pub(super) fn new() -> Result<Self> {
        super::heap::give_back().context("no thread can be started")?;
        Ok(Self {
            running: Vec::new(),
            terminate: signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?,
            interrupt: signal(SignalKind::interrupt()).context("SIGINT cannot be caught")?,
            stop_limit: STOP_LIMIT,
        })
    }

    /// Gives each role `more` time to stop, since it first finishes what it does.
    pub(super) fn allow(&mut self, more: Duration) {
        self.stop_limit = self.stop_limit.saturating_add(more);
    }

    /// Starts a role; `serve` gets the future whose completion asks it to stop.
    pub(super) fn start<F, E>(&mut self, name: &'static str, serve: impl FnOnce(Stop) -> F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<anyhow::Error> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let work = serve(Stop(stopped));
        let task = tokio::spawn(async move { work.await.map_err(Into::into) });
        self.running.push(Role { name, stop, task });
    }

    /// Does `work` while the roles run. Gives it up if one of them ends or the process is told to stop. `None` if it
    /// was told to stop.
    pub(super) async fn while_running<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
        tokio::select! {
            done = work => done.map(Some),
            ended = end_of_one(&mut self.running) => Err(ended),
            _ = self.terminate.recv() => Ok(None),
            _ = self.interrupt.recv() => Ok(None),
        }
    }

    /// Serves until the process is told to stop, or a role ends, which is an error.
    pub(super) async fn serve(&mut self) -> Result<()> {
        self.while_running(std::future::pending::<Result<()>>()).await.map(drop)
    }

    /// Stops all roles, the last started first.
    pub(super) async fn stop(mut self) -> Result<()> {
        let mut first_error = Ok(());
        while let Some(role) = self.running.pop() {
            tracing::info!(target: super::LOG, role = role.name, "stopping");
            // The role may have ended already, and its receiver with it.
            let _ended = role.stop.send(());
            if role.task.is_finished() {
                continue;
            }
            let mut task = role.task;
            let outcome = match tokio::time::timeout(self.stop_limit, &mut task).await {
                Ok(joined) => joined.context("it panicked").and_then(|r| r),
                Err(_) => {
                    task.abort();
                    Err(anyhow!("it did not stop within {:?}", self.stop_limit))
                }
            };
            first_error = first_error.and(outcome.with_context(|| format!("the {} did not stop well", role.name)));
        }
        first_error
    }
}

/// Completes when a role ends, with its error.
async fn end_of_one(running: &mut [Role]) -> anyhow::Error {
    if running.is_empty() {
        return std::future::pending().await;
    }
    let (outcome, index, _) = select_all(running.iter_mut().map(|r| &mut r.task)).await;
    let name = running.get(index).map_or("role", |r| r.name);
    match outcome {
        Ok(Ok(())) => anyhow!("the {name} ended although nobody asked it to"),
        Ok(Err(e)) => e.context(format!("the {name} failed")),
        Err(e) => anyhow!(e).context(format!("the {name} panicked")),
    }
}

/// Completes when the role must stop.
pub(super) struct Stop(oneshot::Receiver<()>);

impl Stop {
    /// Waits for it. A platform that is gone also asks to stop.
    pub(super) async fn wait(self) {
        let _asked = self.0.await;
    }
}

/// Polls until `ready` returns true, for at most `limit`.
pub(super) async fn until<F: Future<Output = bool>>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> F,
) -> Result<()> {
    let deadline = tokio::time::Instant::now() + limit;
    while !ready().await {
        if tokio::time::Instant::now() > deadline {
            bail!("{what} is not ready after {limit:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn orderly(roles: &mut Roles, name: &'static str, log: &Log) {
        let log = log.clone();
        roles.start(name, |stop| async move {
            stop.wait().await;
            log.lock().unwrap().push(name);
            Ok::<_, anyhow::Error>(())
        });
    }

    #[tokio::test]
    async fn the_last_started_stops_first() {
        let log = Log::default();
        let mut roles = Roles::new().unwrap();
        for name in ["s3", "scheduler", "gateway"] {
            orderly(&mut roles, name, &log);
        }
        roles.stop().await.unwrap();
        assert_eq!(*log.lock().unwrap(), ["gateway", "scheduler", "s3"]);
    }

    #[tokio::test]
    async fn a_role_that_dies_ends_the_platform_with_its_error() {
        let log = Log::default();
        let mut roles = Roles::new().unwrap();
        orderly(&mut roles, "s3", &log);
        roles.start("worker", |_stop| async { Err::<(), _>(anyhow!("no cgroups")) });
        let error = format!("{:#}", roles.serve().await.unwrap_err());
        assert_eq!(error, "the worker failed: no cgroups");
        roles.stop().await.unwrap();
        assert_eq!(*log.lock().unwrap(), ["s3"]);
    }

    #[tokio::test]
    async fn a_role_that_does_not_stop_is_given_up() {
        let mut roles = Roles::new().unwrap();
        roles.stop_limit = Duration::from_millis(50);
        roles.start("gateway", |stop| async move {
            stop.wait().await;
            std::future::pending::<Result<(), anyhow::Error>>().await
        });
        let error = format!("{:#}", roles.stop().await.unwrap_err());
        assert!(error.contains("did not stop within"), "{error}");
    }
}
