//! What must survive a restart: functions, their versions, and asynchronous invocations. The only module that touches sqlx.
//!
//! SQLite on one machine, PostgreSQL in a cluster, by the same statements through sqlx's `Any`: numbers are `BIGINT`, flags
//! are counts, and what the two spell differently is in [`dialect`]. A transaction that reads before it writes begins with
//! [`Store::begin`], which lets one at a time in, as is SQLite's rule anyway. Nothing on the path of a synchronous invocation comes here.

mod calls;
mod collection;
mod dialect;
mod drained;
mod functions;
#[cfg(test)]
mod tests;
mod versions;
mod workers;

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::AnyPoolOptions;
use sqlx::{Any, AnyPool, Transaction};

pub(crate) use calls::{CallRow, Due, Ended, NewRow, Queues, Wanted};
pub(crate) use dialect::Dialect;
pub(crate) use versions::NewVersion;

/// Connections at most.
const CONNECTIONS: u32 = 8;
/// How long a statement may wait for one.
const CONNECTION_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The database cannot be opened or made.
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
    /// A statement failed.
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
    Busy(rekindle_wire::FunctionName),
}

/// The scheduler's database.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    /// For reading.
    pool: AnyPool,
    /// For statements that write. With SQLite, one connection: who waits for it is served in turn, whereas SQLite lets each try anew after
    /// ever longer pauses.
    writes: AnyPool,
    dialect: Dialect,
}

impl Store {
    /// Opens the SQLite database at `path`, makes it when it is not there, and brings its tables up to date.
    pub(crate) async fn open(path: &Path) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        Self::connect(Dialect::Sqlite, &dialect::sqlite_url(path), name).await
    }

    async fn connect(dialect: Dialect, url: &str, name: String) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        let open = |source| StoreError::Open {
            name: name.clone(),
            source,
        };
        let pool = |connections| {
            AnyPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(CONNECTION_LIMIT)
                .after_connect(move |connection, _| Box::pin(dialect.prepare(connection)))
                .connect(url)
        };
        let writes = pool(dialect.writers()).await.map_err(open)?;
        dialect
            .migrator()
            .run(&writes)
            .await
            .map_err(|source| StoreError::Migrate {
                name: name.clone(),
                source,
            })?;
        let pool = pool(CONNECTIONS).await.map_err(open)?;
        Ok(Self { pool, writes, dialect })
    }

    /// A transaction that may read before it writes, alone.
    async fn begin(&self, doing: &'static str) -> Result<Transaction<'static, Any>, StoreError> {
        let begun = match self.dialect {
            // A transaction that only later asks for the right to write is refused when another has written.
            Dialect::Sqlite => self.writes.begin_with("BEGIN IMMEDIATE").await,
        };
        begun.map_err(failed(doing))
    }

    /// Closes every connection.
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

/// A value as a column holds it.
fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(unreadable("value to be written"))
}

/// The value that a column holds.
fn parsed<T: DeserializeOwned>(column: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(unreadable(column))
}
