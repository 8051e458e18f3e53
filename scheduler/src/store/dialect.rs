//! What differs between the databases: how a connection is set up, and a few words of SQL.

use std::path::Path;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AssertSqlSafe, Executor as _, SqlSafeStr as _};

/// Forward only; what was released is never changed. Written in SQLite's words.
const MIGRATIONS: [(i64, &str, &str); 4] = [
    (1, "functions", include_str!("../../migrations/0001_functions.sql")),
    (2, "platform", include_str!("../../migrations/0002_platform.sql")),
    (3, "async calls", include_str!("../../migrations/0003_async_calls.sql")),
    (
        4,
        "drained workers",
        include_str!("../../migrations/0004_drained_workers.sql"),
    ),
];

/// A database's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// A file, for one scheduler.
    Sqlite,
}

impl Dialect {
    /// Sets a new connection up.
    pub(super) async fn prepare(self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        match self {
            // FULL: what was accepted survives a power cut, not only a kill.
            Self::Sqlite => connection
                .execute(
                    "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON",
                )
                .await
                .map(drop),
        }
    }

    /// Connections for writing.
    pub(super) fn writers(self) -> u32 {
        match self {
            Self::Sqlite => 1,
        }
    }

    /// The migrations, in this database's words.
    pub(super) fn migrator(self) -> Migrator {
        let migrations = MIGRATIONS.map(|(version, name, sql)| {
            let sql = AssertSqlSafe(self.words(sql)).into_sql_str();
            Migration::new(version, name.into(), MigrationType::Simple, sql, false)
        });
        Migrator::with_migrations(migrations.into())
    }

    fn words(self, sql: &str) -> String {
        match self {
            Self::Sqlite => sql.to_owned(),
        }
    }

    /// At the end of a selection of rows to be taken: those that another takes at this moment are passed over.
    pub(super) fn skip_locked(self) -> &'static str {
        match self {
            // One writes at a time.
            Self::Sqlite => "",
        }
    }
}

/// The address of a database file. Whatever its path has in it stands for itself.
pub(super) fn sqlite_url(path: &Path) -> String {
    let mut url = "sqlite:".to_owned();
    for byte in path.to_string_lossy().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => url.push(char::from(byte)),
            other => url.push_str(&format!("%{other:02X}")),
        }
    }
    url + "?mode=rwc"
}
