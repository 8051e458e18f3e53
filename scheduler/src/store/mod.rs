//! What must survive a restart: functions and their versions, in SQLite. The only module that touches sqlx.
//!
//! One writer at a time is SQLite's rule; deploys are rare, and nothing on the path of an invocation comes here.

mod collection;
mod drained;
mod functions;
#[cfg(test)]
mod tests;
mod versions;
mod workers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::SqlSafeStr as _;
use sqlx::SqlitePool;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

pub(crate) use versions::NewVersion;

const MIGRATIONS: [(i64, &str, &str); 3] = [
    (1, "functions", include_str!("../../migrations/0001_functions.sql")),
    (2, "platform", include_str!("../../migrations/0002_platform.sql")),
    (
        4,
        "drained workers",
        include_str!("../../migrations/0004_drained_workers.sql"),
    ),
];

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file cannot be opened or made.
    #[error("cannot open the database {path}: check that its folder exists and may be written")]
    Open {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    /// The tables cannot be brought to this version's form.
    #[error("cannot bring the database {path} up to date: was it written by a newer version?")]
    Migrate {
        path: PathBuf,
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
    pool: SqlitePool,
}

impl Store {
    /// Opens the database at `path`, makes it when it is not there, and brings its tables up to date.
    pub(crate) async fn open(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // FULL: an accepted deploy survives a power cut, not only a kill.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(10))
            .connect_with(options)
            .await
            .map_err(|source| StoreError::Open {
                path: path.to_owned(),
                source,
            })?;
        let migrations = MIGRATIONS
            .iter()
            .map(|(version, name, sql)| {
                Migration::new(
                    *version,
                    (*name).into(),
                    MigrationType::Simple,
                    (*sql).into_sql_str(),
                    false,
                )
            })
            .collect();
        Migrator::with_migrations(migrations)
            .run(&pool)
            .await
            .map_err(|source| StoreError::Migrate {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self { pool })
    }

    /// Closes every connection.
    pub(crate) async fn close(&self) {
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
