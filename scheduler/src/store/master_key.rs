//! Which master key encrypts the database's secrets: its id, and the key itself only as a key service wrapped it.

use rekindle_envelope::WrappedKey;

use super::{Store, StoreError, failed};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownMasterKey {
    pub(crate) id: String,
    /// The key as a service wrapped it, unless it is kept elsewhere.
    pub(crate) wrapped: Option<WrappedKey>,
}

/// Its id; and what wrapped it, for which cluster, and the result.
type Row = (String, Option<String>, Option<String>, Option<Vec<u8>>);

const NOTE: &str = "note the master key";

impl Store {
    /// The id of the database's master key. If it has none yet, `own` is stored and returned.
    pub(crate) async fn master_key(&self, own: &str) -> Result<String, StoreError> {
        sqlx::query("INSERT INTO master_key (one, id) VALUES (1, $1) ON CONFLICT DO NOTHING")
            .bind(own)
            .execute(&self.writes)
            .await
            .map_err(failed(NOTE))?;
        sqlx::query_scalar("SELECT id FROM master_key WHERE one = 1")
            .fetch_one(&self.writes)
            .await
            .map_err(failed(NOTE))
    }

    /// What is known of the database's master key, if it has one.
    pub(crate) async fn known_master_key(&self) -> Result<Option<KnownMasterKey>, StoreError> {
        let row: Option<Row> =
            sqlx::query_as("SELECT id, wrapped_by, wrapped_for, wrapped FROM master_key WHERE one = 1")
                .fetch_optional(&self.writes)
                .await
                .map_err(failed("read the master key's id"))?;
        Ok(row.map(|(id, by, cluster, bytes)| {
            let wrapped = by.zip(cluster).zip(bytes);
            let wrapped = wrapped.map(|((by, cluster), bytes)| WrappedKey { by, cluster, bytes });
            KnownMasterKey { id, wrapped }
        }))
    }

    /// Records that another master key is used from now on.
    pub(crate) async fn set_master_key(&self, own: &str) -> Result<(), StoreError> {
        sqlx::query("UPDATE master_key SET id = $1 WHERE one = 1")
            .bind(own)
            .execute(&self.writes)
            .await
            .map(drop)
            .map_err(failed(NOTE))
    }

    /// Since when orders have tickets, Unix time in seconds: `now` if none had one before.
    pub(crate) async fn tickets_since(&self, now_unix_s: i64) -> Result<i64, StoreError> {
        let statement = "UPDATE master_key SET tickets_unix_s = COALESCE(tickets_unix_s, $1) WHERE one = 1 \
                         RETURNING tickets_unix_s";
        sqlx::query_scalar(statement)
            .bind(now_unix_s)
            .fetch_one(&self.writes)
            .await
            .map_err(failed("read since when orders have tickets"))
    }

    /// Stores a new wrapped master key, unless the database has one already.
    pub(crate) async fn add_wrapped_key(&self, id: &str, wrapped: &WrappedKey) -> Result<(), StoreError> {
        let statement = "INSERT INTO master_key (one, id, wrapped_by, wrapped_for, wrapped) \
                         VALUES (1, $1, $2, $3, $4) ON CONFLICT DO NOTHING";
        self.note_wrapped(statement, id, wrapped).await
    }

    /// Stores the database's master key as it is wrapped now, unless it has another one meanwhile.
    pub(crate) async fn set_wrapped_key(&self, id: &str, wrapped: &WrappedKey) -> Result<(), StoreError> {
        let statement =
            "UPDATE master_key SET wrapped_by = $2, wrapped_for = $3, wrapped = $4 WHERE one = 1 AND id = $1";
        self.note_wrapped(statement, id, wrapped).await
    }

    async fn note_wrapped(&self, statement: &'static str, id: &str, wrapped: &WrappedKey) -> Result<(), StoreError> {
        sqlx::query(statement)
            .bind(id)
            .bind(wrapped.by.as_str())
            .bind(wrapped.cluster.as_str())
            .bind(wrapped.bytes.as_slice())
            .execute(&self.writes)
            .await
            .map(drop)
            .map_err(failed(NOTE))
    }
}
