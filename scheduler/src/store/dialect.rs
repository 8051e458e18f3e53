//! Differences between the databases: how a connection is set up, and a few phrases of SQL.

use std::path::Path;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AssertSqlSafe, Executor as _, SqlSafeStr as _};

/// Forward only; a released migration never changes. Written in SQLite's dialect.
pub(super) const MIGRATIONS: [(i64, &str, &str); 25] = [
    (1, "functions", include_str!("../../migrations/0001_functions.sql")),
    (2, "platform", include_str!("../../migrations/0002_platform.sql")),
    (3, "async calls", include_str!("../../migrations/0003_async_calls.sql")),
    (
        4,
        "drained workers",
        include_str!("../../migrations/0004_drained_workers.sql"),
    ),
    (5, "leader", include_str!("../../migrations/0005_leader.sql")),
    (6, "usage", include_str!("../../migrations/0006_usage.sql")),
    (
        7,
        "owners of calls",
        include_str!("../../migrations/0007_call_owners.sql"),
    ),
    (
        8,
        "runtime snapshots",
        include_str!("../../migrations/0008_runtime_snapshots.sql"),
    ),
    (9, "renewals", include_str!("../../migrations/0009_renewals.sql")),
    (10, "revocations", include_str!("../../migrations/0010_revocations.sql")),
    (
        11,
        "namespaces",
        concat!(
            include_str!("../../migrations/0011_namespaces.sql"),
            include_str!("../../migrations/0011_functions_sqlite.sql")
        ),
    ),
    (12, "aliases", include_str!("../../migrations/0012_aliases.sql")),
    (
        13,
        "reused versions",
        include_str!("../../migrations/0013_reused_versions.sql"),
    ),
    (14, "canaries", include_str!("../../migrations/0014_canaries.sql")),
    (15, "secrets", include_str!("../../migrations/0015_secrets.sql")),
    (16, "schedules", include_str!("../../migrations/0016_schedules.sql")),
    (17, "access", include_str!("../../migrations/0017_access.sql")),
    (18, "audit", include_str!("../../migrations/0018_audit.sql")),
    (19, "quotas", include_str!("../../migrations/0019_quotas.sql")),
    (
        20,
        "access rules",
        include_str!("../../migrations/0020_access_rules.sql"),
    ),
    (
        21,
        "snapshot keys",
        include_str!("../../migrations/0021_snapshot_keys.sql"),
    ),
    (
        22,
        "destinations",
        include_str!("../../migrations/0022_destinations.sql"),
    ),
    (
        23,
        "destinations by namespace",
        include_str!("../../migrations/0023_destinations_by_namespace.sql"),
    ),
    (
        24,
        "wrapped master key",
        include_str!("../../migrations/0024_wrapped_master_key.sql"),
    ),
    (
        25,
        "order tickets",
        include_str!("../../migrations/0025_order_tickets.sql"),
    ),
];

/// Holds others up until the transaction ends. The number is ours among the database's advisory locks.
pub(super) const ALONE: &str = "SELECT pg_advisory_xact_lock(5932465131)";

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// A file, for one scheduler.
    Sqlite,
    /// A server, for several.
    Postgres,
}

impl Dialect {
    /// Sets up a new connection.
    pub(super) async fn prepare(self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        match self {
            // FULL: what was accepted survives a power cut, not only a kill.
            Self::Sqlite => connection
                .execute(
                    "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                     PRAGMA foreign_keys = ON",
                )
                .await
                .map(drop),
            // A statement that waits this long for another's lock is better retried.
            Self::Postgres => connection.execute("SET lock_timeout = '10s'").await.map(drop),
        }
    }

    /// Number of connections for writing.
    pub(super) fn writers(self) -> u32 {
        match self {
            Self::Sqlite => 1,
            Self::Postgres => super::CONNECTIONS,
        }
    }

    /// The first `count` migrations, in this database's dialect.
    pub(super) fn migrator(self, count: usize) -> Migrator {
        let migrations = MIGRATIONS.iter().take(count).map(|(version, name, sql)| {
            let sql = AssertSqlSafe(self.words(sql)).into_sql_str();
            Migration::new(*version, (*name).into(), MigrationType::Simple, sql, false)
        });
        Migrator::with_migrations(migrations.collect())
    }

    fn words(self, sql: &str) -> String {
        match self {
            Self::Sqlite => sql.to_owned(),
            // This never reuses ids either.
            Self::Postgres => sql
                .replace(
                    include_str!("../../migrations/0011_functions_sqlite.sql"),
                    include_str!("../../migrations/0011_functions_postgres.sql"),
                )
                .replace(
                    "INTEGER PRIMARY KEY AUTOINCREMENT",
                    "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
                )
                .replace(" BLOB", " BYTEA"),
        }
    }

    /// Goes at the end of a selection of rows to be claimed: rows that another transaction claims right now are
    /// skipped.
    pub(super) fn skip_locked(self) -> &'static str {
        match self {
            // There is one writer at a time.
            Self::Sqlite => "",
            Self::Postgres => " FOR UPDATE SKIP LOCKED",
        }
    }

    /// The statement that begins a transaction exclusive to its kind, and whether it must still run [`ALONE`].
    pub(super) fn begin(self) -> (&'static str, bool) {
        match self {
            // A transaction that requests write access only later fails if another has written.
            Self::Sqlite => ("BEGIN IMMEDIATE", false),
            Self::Postgres => ("BEGIN", true),
        }
    }

    /// A field of the JSON in a column, as text or a number.
    pub(super) fn json_field(self, column: &str, path: &[&str]) -> String {
        match self {
            Self::Sqlite => format!("json_extract({column}, '$.{}')", path.join(".")),
            Self::Postgres => format!("({column}::json #>> '{{{}}}')", path.join(",")),
        }
    }

    /// The database's clock: milliseconds since the Unix epoch.
    pub(super) fn now_unix_ms(self) -> &'static str {
        match self {
            Self::Sqlite => "CAST((julianday('now') - 2440587.5) * 86400000 AS BIGINT)",
            Self::Postgres => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
        }
    }
}

/// The URL of a database file. Every character of its path is taken literally.
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
