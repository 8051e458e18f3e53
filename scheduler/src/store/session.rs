//! A scheduler's connections to a shared database, and how they end with its lead.
//!
//! A leader may be suspended for a while, with its process stopped or its host paused. When it continues, it may have
//! been replaced while it has statements in flight. So a successor first ends the connections of all others, and waits
//! until they are gone, before it reads anything. A scheduler that has led reconnects only while the lead is still its
//! own. Standby schedulers just connect again.

use std::error::Error;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::AnyConnection;
use uuid::Uuid;

use super::{Dialect, Store, StoreError, failed};

/// Prefix of the names of schedulers' connections.
const PREFIX: &str = "rekindle-scheduler ";
/// How long the connections of others may take to end.
const ENDED_LIMIT: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often a start is tried whose connections were ended, and the pause after each.
const STARTS: u32 = 5;
const START_AGAIN: Duration = Duration::from_millis(200);
/// What PostgreSQL says to whoever is on a connection that it was told to end.
const ADMIN_SHUTDOWN: &str = "57P01";

/// Runs a start on a database. Whoever takes the lead of a shared one ends all connections of others
/// ([`Store::take_over`]), those of a scheduler that just starts, too. Then it is run again.
pub(crate) async fn despite_another_taking_the_lead<T, E, F>(start: impl Fn() -> F) -> Result<T, E>
where
    E: Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    for _ in 1..STARTS {
        match start().await {
            Err(error) if was_ended(&error) => {
                tracing::warn!(
                    error = &error as &dyn Error,
                    "the database ended a connection of this start, as it does when another takes the lead: once more"
                );
            }
            result => return result,
        }
        tokio::time::sleep(START_AGAIN).await;
    }
    start().await
}

/// Whether an error comes from a connection that the server ended.
fn was_ended(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| match cause.downcast_ref() {
        Some(sqlx::Error::Database(told)) => told.code().is_some_and(|code| code == ADMIN_SHUTDOWN),
        Some(sqlx::Error::Io(error)) => {
            let kinds = [
                ErrorKind::UnexpectedEof,
                ErrorKind::ConnectionReset,
                ErrorKind::BrokenPipe,
            ];
            kinds.contains(&error.kind())
        }
        _ => false,
    })
}

/// What all connections of this process have in common.
#[derive(Debug, Clone)]
pub(super) struct Session {
    holder: Arc<str>,
    has_led: Arc<AtomicBool>,
}

impl Session {
    pub(super) fn new() -> Self {
        Self {
            holder: Uuid::new_v4().simple().to_string().into(),
            has_led: Arc::default(),
        }
    }

    /// Names a new connection. Refuses it if another scheduler has replaced this process as the leader.
    pub(super) async fn begin(&self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        let _name: String = sqlx::query_scalar("SELECT set_config('application_name', $1, false)")
            .bind(format!("{PREFIX}{}", self.holder))
            .fetch_one(&mut *connection)
            .await?;
        if !self.has_led.load(Ordering::SeqCst) {
            return Ok(());
        }
        let holder: Option<String> = sqlx::query_scalar("SELECT holder FROM leader WHERE one = 1")
            .fetch_optional(&mut *connection)
            .await?;
        match holder.as_deref() == Some(&*self.holder) {
            true => Ok(()),
            false => Err(sqlx::Error::Protocol(
                "another scheduler leads in place of this one".to_owned(),
            )),
        }
    }
}

impl Store {
    /// This process's identity among those that share the database.
    pub(crate) fn holder(&self) -> &str {
        &self.session.holder
    }

    /// Undoes winning a lead that could not be taken over: another leader no longer keeps this process from connecting.
    pub(crate) fn has_not_led(&self) {
        self.session.has_led.store(false, Ordering::SeqCst);
    }

    /// Takes over once the lead is won. After this returns, nothing more comes from the previous leader.
    ///
    /// # Errors
    /// If the previous leader's connections cannot be ended.
    pub(crate) async fn take_over(&self) -> Result<(), StoreError> {
        self.session.has_led.store(true, Ordering::SeqCst);
        if self.dialect == Dialect::Sqlite {
            return Ok(());
        }
        let doing = "end the connections of who led before";
        let others = async |what: &str| -> Result<Vec<i64>, StoreError> {
            // Only as many rows as there are connections.
            let sql = format!(
                "SELECT {what} FROM pg_stat_activity WHERE datname = current_database() AND usename = session_user \
                 AND application_name LIKE $1 AND application_name <> $2"
            );
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .bind(format!("{PREFIX}%"))
                .bind(format!("{PREFIX}{}", self.session.holder))
                .fetch_all(&self.writes)
                .await
                .map_err(failed(doing))
        };
        let ended = async {
            let before = others("CAST(pid AS BIGINT)").await?;
            others("CAST(pg_terminate_backend(pid) AS INTEGER)::BIGINT").await?;
            // Standby schedulers connect again, as new connections.
            while others("CAST(pid AS BIGINT)")
                .await?
                .iter()
                .any(|pid| before.contains(pid))
            {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(())
        };
        let late = |_| failed(doing)(sqlx::Error::Protocol("they do not end".to_owned()));
        tokio::time::timeout(ENDED_LIMIT, ended).await.map_err(late)?
    }
}
