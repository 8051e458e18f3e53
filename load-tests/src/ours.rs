//! The platform's side: invocations through gateway, scheduler and worker, as any client sends them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use http::Method;
use rekindle_testkit::{Client, Platform};
use rekindle_wire::api::{InstanceInfo, InstanceState};
use rekindle_wire::headers::{FORCE_START, INSTANCE, START};

use crate::client::{Connection, Reply};
use crate::subject::{Sample, Subject};

/// Limit to be idle for a second, be noticed, and be frozen.
const PARKED_LIMIT: Duration = Duration::from_secs(30);
/// Time in which a copy is restored after the invocation before.
const RENEWED: Duration = Duration::from_millis(30);

/// A client of a platform on which the function is live.
pub(crate) struct Ours {
    port: u16,
    admin: Client,
    authorization: String,
    function: String,
    /// Kept open, as clients do; for warm invocations.
    kept: Option<Connection>,
    /// The same for those that get copies of their own.
    kept_fresh: Option<Connection>,
}

/// The first response of a fresh instance.
pub(crate) struct Started {
    /// Its time and phases.
    pub(crate) sample: Sample,
    /// The response.
    pub(crate) reply: Reply,
}

impl Started {
    /// The instance that gave it.
    pub(crate) fn instance(&self) -> &str {
        self.reply.header(INSTANCE)
    }
}

impl Ours {
    /// A client of this platform for a function that is live there.
    pub(crate) fn of(platform: &Platform, function: &str) -> Self {
        Self {
            port: platform.port(),
            admin: Client::clone(platform),
            authorization: format!("Bearer {}", platform.key()),
            function: function.to_owned(),
            kept: None,
            kept_fresh: None,
        }
    }

    /// One run. Whatever was started for it is gone when this returns.
    pub(crate) async fn run(&mut self, subject: Subject) -> Result<Sample> {
        match subject {
            Subject::Booted => self.fresh("booted").await,
            Subject::Restored => self.fresh("restored").await,
            Subject::Parked => self.parked().await,
            Subject::Fresh => {
                // The copy after the last one is restored meanwhile.
                tokio::time::sleep(RENEWED).await;
                let path = format!("/function/{}-fresh/", self.function);
                running(&mut self.kept_fresh, self.port, &path).await
            }
            Subject::Warm => {
                let path = format!("/function/{}/", self.function);
                running(&mut self.kept, self.port, &path).await
            }
            other => bail!("{} is not the platform's", other.name()),
        }
    }

    /// A request for a fresh instance of any function, `booted` or `restored`, on a fresh connection, as for the peers.
    /// The instance stays.
    pub(crate) async fn start(&self, start: &str, function: &str, path: &str) -> Result<Started> {
        let headers = [("authorization", self.authorization.as_str()), (FORCE_START, start)];
        let path = format!("/function/{function}{path}");
        let triggered = Instant::now();
        let mut connection = Connection::open(self.port).await?;
        let reply = connection.call(Method::GET, &path, &headers).await?;
        let sample = Sample::since(triggered, &reply);
        let how = reply.header(START);
        ensure!(
            reply.status.is_success() && how == start,
            "{} ({how}, not {start}): {}",
            reply.status,
            reply.text()
        );
        Ok(Started { sample, reply })
    }

    /// A fresh instance of whatever function, gone when this returns.
    pub(crate) async fn start_and_remove(&self, start: &str) -> Result<Started> {
        let started = self.start(start, &self.function, "/").await?;
        self.admin.remove_instance(started.instance())?;
        Ok(started)
    }

    /// A fresh instance of the workload's function, gone when this returns.
    pub(crate) async fn fresh(&self, start: &str) -> Result<Sample> {
        let started = self.start_and_remove(start).await?;
        started.reply.of_function()?;
        Ok(started.sample)
    }

    /// An instance that was idle for a second and then frozen, on a fresh connection. It stays, and is parked again by
    /// the next round.
    async fn parked(&self) -> Result<Sample> {
        let function = format!("{}-parked", self.function);
        let path = format!("/function/{function}/");
        let mut connection = Connection::open(self.port).await?;
        self.until_parked(&mut connection, &function, &path).await?;
        let triggered = Instant::now();
        let mut fresh = Connection::open(self.port).await?;
        let answer = fresh.call(Method::GET, &path, &[]).await?;
        started(triggered, answer, "parked")
    }

    /// Waits until an instance is parked and none is in its place. Makes one if there is none at all.
    async fn until_parked(&self, connection: &mut Connection, function: &str, path: &str) -> Result<()> {
        let deadline = Instant::now() + PARKED_LIMIT;
        loop {
            let mut own: Vec<InstanceInfo> = self.admin.value("/v1/instances")?;
            own.retain(|i| i.function.as_str() == function);
            if own.is_empty() {
                connection.call(Method::GET, path, &[]).await?.of_function()?;
            } else if own.iter().all(|i| i.state == InstanceState::Parked) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "no instance of {function} is parked within {PARKED_LIMIT:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// An existing instance on an existing connection.
async fn running(kept: &mut Option<Connection>, port: u16, path: &str) -> Result<Sample> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => {
            let mut connection = Connection::open(port).await?;
            // The first starts the instance, and is not measured.
            connection.call(Method::GET, path, &[]).await?.of_function()?;
            connection
        }
    };
    let triggered = Instant::now();
    let answer = connection.call(Method::GET, path, &[]).await?;
    let sample = started(triggered, answer, "warm")?;
    *kept = Some(connection);
    Ok(sample)
}

/// The sample of a response, if it is the function's and its instance was started like this.
fn started(triggered: Instant, answer: Reply, start: &str) -> Result<Sample> {
    let sample = Sample::since(triggered, &answer);
    let answer = answer.of_function()?;
    let how = answer.header(START);
    ensure!(how == start, "the instance was {how}, not {start}");
    Ok(sample)
}
