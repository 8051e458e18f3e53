//! A whole database file: copied while it is in use, and checked before it is put in place.

use std::path::Path;

use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use super::dialect::MIGRATIONS;

/// Why a database file could not be copied or used.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// SQLite failed.
    #[error("the database cannot be read: is it one of a scheduler?")]
    Sqlite(#[from] sqlx::Error),
    /// Its tables are of a newer form.
    #[error("its tables are of form {found}, and this version knows {known}")]
    Newer {
        /// The database's form.
        found: i64,
        /// The form that this version knows.
        known: i64,
    },
}

/// Copies the database at `from`, as of one moment, into a new file `to`. Others may use the database meanwhile.
///
/// # Errors
/// If either file cannot be used.
pub async fn copy_database(from: &Path, to: &Path) -> Result<(), CopyError> {
    let mut connection = open(from).await?;
    sqlx::query("VACUUM INTO $1")
        .bind(to.to_string_lossy().into_owned())
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok(())
}

/// Checks whether this version can use the database at `path`.
///
/// # Errors
/// If it cannot.
pub async fn check_database(path: &Path) -> Result<(), CopyError> {
    let mut connection = open(path).await?;
    let sound: String = sqlx::query_scalar("PRAGMA integrity_check(1)")
        .fetch_one(&mut connection)
        .await?;
    if sound != "ok" {
        return Err(CopyError::Sqlite(sqlx::Error::Protocol(sound)));
    }
    let found: i64 = sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    let known = MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0);
    if found > known {
        return Err(CopyError::Newer { found, known });
    }
    Ok(())
}

async fn open(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(std::time::Duration::from_secs(10));
    SqliteConnection::connect_with(&options).await
}
