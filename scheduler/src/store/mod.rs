//! Everything that must survive a restart: functions, their versions, and asynchronous invocations. The only module
//! that touches sqlx.
//!
//! SQLite on one machine, PostgreSQL in a cluster, with the same statements through sqlx's `Any`. Numbers are `BIGINT`,
//! flags are counts, and [`dialect`] holds what the two spell differently. A transaction that reads before it writes
//! begins with [`Store::begin`], which admits one at a time, as SQLite does anyway. Nothing on the path of a
//! synchronous invocation comes here.

mod access_rules;
mod aliases;
mod audit;
mod backup;
mod calls;
mod canaries;
mod collection;
mod dialect;
mod drained;
mod functions;
mod keys;
mod leader;
mod master_key;
mod namespaces;
mod quotas;
mod renewals;
mod revocations;
mod runtime_snapshots;
mod schedules;
mod secrets;
mod session;
mod snapshot_keys;
#[cfg(test)]
mod tests;
mod usage;
mod usage_days;
mod versions;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rekindle_wire::FunctionId;
use rekindle_wire::api::VersionState;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::AnyPoolOptions;
use sqlx::{Any, AnyPool, Transaction};

pub(crate) use aliases::AliasError;
pub(crate) use audit::AuditQuery;
pub use backup::{CopyError, check_database, copy_database};
pub(crate) use calls::{
    CallDisposition, CallNotification, CallQuery, CallRow, DueEvent, NewRow, QueueCounts, Queues, SealedClaim,
    StoredCall,
};
pub(crate) use dialect::Dialect;
pub(crate) use keys::StoredKey;
pub(crate) use leader::ElectionOutcome;
pub(crate) use master_key::KnownMasterKey;
pub(crate) use renewals::{ATTEMPTS_MAX, AttemptReset, DueRenewal};
pub(crate) use schedules::StoredSchedule;
pub(crate) use secrets::StoredSecret;
use session::Session;
pub(crate) use session::despite_another_taking_the_lead;
pub(crate) use usage_days::UsageQuery;
pub(crate) use versions::{NewVersion, Rollout, Source};

/// Maximum number of connections.
const CONNECTIONS: u32 = 8;
/// How long a statement may wait for a connection.
const CONNECTION_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Where the scheduler keeps what must survive a restart.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// An SQLite file, created if it does not exist. Its folder must exist. For one scheduler.
    File(PathBuf),
    /// A PostgreSQL database, `postgres://user:password@host/name`. For several schedulers, one of which leads.
    Postgres(String),
}

impl From<PathBuf> for Database {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl FromStr for Database {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| text.starts_with(scheme));
        match known {
            true => Ok(Self::Postgres(text.to_owned())),
            false => Err("is no address of a database: write postgres://USER:PASSWORD@HOST/NAME".to_owned()),
        }
    }
}

impl fmt::Display for Database {
    /// Without a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Postgres(url) => {
                let after_secrets = url.rsplit_once('@').map_or(url.as_str(), |(_, place)| place);
                let place = after_secrets.split('?').next().unwrap_or_default();
                write!(f, "postgres at {}", place.trim_start_matches("postgres://"))
            }
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The database cannot be opened or created.
    #[error(
        "cannot open the database {name}: check that its folder exists and may be written, or that its server answers"
    )]
    Open {
        name: String,
        #[source]
        source: sqlx::Error,
    },
    /// The tables cannot be brought to this version's form.
    #[error("cannot bring the database {name} up to date: was it written by a newer version?")]
    Migrate {
        name: String,
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    #[error("the database could not {doing}")]
    Statement {
        doing: &'static str,
        #[source]
        source: sqlx::Error,
    },
    /// A column does not hold what this version writes there.
    #[error("the database holds a {column} that cannot be read")]
    Column {
        column: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A version of the function is still being prepared, or the function is being deleted.
    #[error("a version of {0} is being prepared")]
    Busy(FunctionId),
}

#[derive(Debug, Clone)]
pub(crate) struct Store {
    /// Connections for reading.
    pool: AnyPool,
    /// Connections for writing. SQLite has just one: waiters for it are served in turn, whereas SQLite itself lets each
    /// retry after ever longer pauses.
    writes: AnyPool,
    dialect: Dialect,
    session: Session,
}

impl Store {
    /// Opens the database, creates a missing file, and brings its tables up to date.
    pub(crate) async fn open(database: &Database) -> Result<Self, StoreError> {
        Self::open_as(database, dialect::MIGRATIONS.len()).await
    }

    /// Opens the database with the tables as they were after the first `migrations`.
    async fn open_as(database: &Database, migrations: usize) -> Result<Self, StoreError> {
        let (dialect, url) = match database {
            Database::File(path) => (Dialect::Sqlite, dialect::sqlite_url(path)),
            Database::Postgres(url) => (Dialect::Postgres, url.clone()),
        };
        Self::connect(dialect, &url, database.to_string(), migrations).await
    }

    async fn connect(dialect: Dialect, url: &str, name: String, migrations: usize) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        let open = |source| StoreError::Open {
            name: name.clone(),
            source,
        };
        let session = Session::new();
        let pool = |connections| {
            let session = session.clone();
            AnyPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(CONNECTION_LIMIT)
                .after_connect(move |connection, _| {
                    let session = session.clone();
                    Box::pin(async move {
                        dialect.prepare(connection).await?;
                        match dialect {
                            Dialect::Sqlite => Ok(()),
                            Dialect::Postgres => session.begin(connection).await,
                        }
                    })
                })
                .connect(url)
        };
        let writes = pool(dialect.writers()).await.map_err(open)?;
        dialect
            .migrator(migrations)
            .run(&writes)
            .await
            .map_err(|source| StoreError::Migrate {
                name: name.clone(),
                source,
            })?;
        let pool = match dialect {
            Dialect::Sqlite => pool(CONNECTIONS).await.map_err(open)?,
            Dialect::Postgres => writes.clone(),
        };
        Ok(Self {
            pool,
            writes,
            dialect,
            session,
        })
    }

    /// Begins an exclusive transaction that may read before it writes.
    async fn begin(&self, doing: &'static str) -> Result<Transaction<'static, Any>, StoreError> {
        let (begin, say_so) = self.dialect.begin();
        let mut tx = self.writes.begin_with(begin).await.map_err(failed(doing))?;
        if say_so {
            sqlx::query(dialect::ALONE)
                .execute(&mut *tx)
                .await
                .map_err(failed(doing))?;
        }
        Ok(tx)
    }

    pub(crate) async fn close(&self) {
        self.writes.close().await;
        self.pool.close().await;
    }
}

/// For `map_err`: a statement that was to `doing` failed.
fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Statement { doing, source }
}

/// For `map_err`: `column` cannot be read.
fn unreadable<E: std::error::Error + Send + Sync + 'static>(column: &'static str) -> impl FnOnce(E) -> StoreError {
    move |source| StoreError::Column {
        column,
        source: Box::new(source),
    }
}

/// The function that two columns name.
fn function_id(namespace: &str, name: &str) -> Result<FunctionId, StoreError> {
    let namespace = namespace.parse().map_err(unreadable("functions.namespace"))?;
    let name = name.parse().map_err(unreadable("functions.name"))?;
    Ok(FunctionId::new(&namespace, &name))
}

/// The state of a version, as the database has it.
fn version_state(text: &str) -> Result<VersionState, StoreError> {
    let known = VersionState::ALL.into_iter().find(|state| state.as_str() == text);
    known.ok_or_else(|| unreadable("versions.state")(std::io::Error::other(text.to_owned())))
}

/// A value as it is stored in a column.
fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(unreadable("value to be written"))
}

/// The value stored in a column.
fn parsed<T: DeserializeOwned>(column: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(unreadable(column))
}
