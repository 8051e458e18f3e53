//! Which master key encrypts the database's secrets: its id, never the key.

use super::{Store, StoreError, failed};

impl Store {
    /// The id of the database's master key. If it has none yet, `own` is stored and returned.
    pub(crate) async fn master_key(&self, own: &str) -> Result<String, StoreError> {
        let doing = "note the master key";
        sqlx::query("INSERT INTO master_key (one, id) VALUES (1, $1) ON CONFLICT DO NOTHING")
            .bind(own)
            .execute(&self.writes)
            .await
            .map_err(failed(doing))?;
        sqlx::query_scalar("SELECT id FROM master_key WHERE one = 1")
            .fetch_one(&self.writes)
            .await
            .map_err(failed(doing))
    }

    /// Records that another master key is used from now on.
    pub(crate) async fn set_master_key(&self, own: &str) -> Result<(), StoreError> {
        sqlx::query("UPDATE master_key SET id = $1 WHERE one = 1")
            .bind(own)
            .execute(&self.writes)
            .await
            .map(drop)
            .map_err(failed("note the master key"))
    }
}
