//! The platform's side: invocations through gateway, scheduler and worker, as any client sends them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use http::Method;
use rekindle_wire::api::InstanceState;
use rekindle_wire::headers::{FORCE_START, INSTANCE, START};

use crate::admin::Admin;
use crate::client::Connection;
use crate::platform::Platform;
use crate::subject::{Sample, Subject};

/// Limit to be idle for a second, be noticed, and be frozen.
const PARKED_LIMIT: Duration = Duration::from_secs(30);

/// A client of a platform on which the function is live.
pub(crate) struct Ours {
    port: u16,
    admin: Admin,
    /// Path of the function.
    path: String,
    /// Name of the function that is parked when it is idle.
    parked: String,
    /// Kept open, as clients do; for warm invocations.
    kept: Option<Connection>,
}

impl Ours {
    /// A client of this platform for a function that is live there.
    pub(crate) fn of(platform: &Platform, function: &str) -> Result<Self> {
        Ok(Self {
            port: platform.port(),
            admin: platform.admin()?,
            path: format!("/function/{function}/"),
            parked: format!("{function}-parked"),
            kept: None,
        })
    }

    /// One run. Whatever was started for it is gone when this returns.
    pub(crate) async fn run(&mut self, subject: Subject) -> Result<Sample> {
        match subject {
            Subject::Booted => self.fresh("booted").await,
            Subject::Restored => self.fresh("restored").await,
            Subject::Parked => self.parked().await,
            Subject::Warm => self.warm().await,
            other => bail!("{} is not the platform's", other.name()),
        }
    }

    /// A fresh instance on a fresh connection, as for the peers.
    async fn fresh(&self, start: &str) -> Result<Sample> {
        let headers = [self.admin.authorization(), (FORCE_START, start)];
        let triggered = Instant::now();
        let mut connection = Connection::open(self.port).await?;
        let answer = connection.call(Method::GET, &self.path, &headers).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        let answer = answer.of_function()?;
        if answer.header(START) != start {
            bail!("the instance was {}, not {start}", answer.header(START));
        }
        self.admin.delete(answer.header(INSTANCE)).await?;
        Ok(Sample {
            ms,
            phases: answer.phases(),
        })
    }

    /// An instance that was idle for a second and then frozen, on a fresh connection. It stays, and is parked again by
    /// the next round.
    async fn parked(&self) -> Result<Sample> {
        let path = format!("/function/{}/", self.parked);
        let mut connection = Connection::open(self.port).await?;
        self.until_parked(&mut connection, &path).await?;
        let triggered = Instant::now();
        let mut fresh = Connection::open(self.port).await?;
        let answer = fresh.call(Method::GET, &path, &[]).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        let answer = answer.of_function()?;
        if answer.header(START) != "parked" {
            bail!("the instance was {}, not parked", answer.header(START));
        }
        Ok(Sample {
            ms,
            phases: answer.phases(),
        })
    }

    /// Waits until an instance is parked and none is in its place. Makes one if there is none at all.
    async fn until_parked(&self, connection: &mut Connection, path: &str) -> Result<()> {
        let deadline = Instant::now() + PARKED_LIMIT;
        loop {
            let own = self.admin.instances(&self.parked).await?;
            if own.is_empty() {
                connection.call(Method::GET, path, &[]).await?.of_function()?;
            } else if own.iter().all(|i| i.state == InstanceState::Parked) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("no instance of {} is parked within {PARKED_LIMIT:?}", self.parked);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// An existing instance on an existing connection.
    async fn warm(&mut self) -> Result<Sample> {
        let mut connection = match self.kept.take() {
            Some(connection) => connection,
            None => {
                let mut connection = Connection::open(self.port).await?;
                // The first starts the instance, and is not measured.
                connection.call(Method::GET, &self.path, &[]).await?.of_function()?;
                connection
            }
        };
        let triggered = Instant::now();
        let answer = connection.call(Method::GET, &self.path, &[]).await?;
        let ms = triggered.elapsed().as_secs_f64() * 1_000.0;
        let answer = answer.of_function()?;
        if answer.header(START) != "warm" {
            bail!("the instance was {}, not warm", answer.header(START));
        }
        self.kept = Some(connection);
        Ok(Sample {
            ms,
            phases: answer.phases(),
        })
    }
}
