//! Workers that their operator wants empty. They are stored, since the scheduler may end while a host is down for
//! repair.

use std::collections::BTreeSet;

use rekindle_wire::WorkerId;

use super::{Store, StoreError, failed, unreadable};

impl Store {
    /// The workers that must be empty.
    pub(crate) async fn drained(&self) -> Result<BTreeSet<WorkerId>, StoreError> {
        let rows: Vec<(String,)> = sqlx::query_as("SELECT worker FROM drained_workers")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read the drained workers"))?;
        let ids = rows
            .into_iter()
            .map(|(id,)| id.parse().map_err(unreadable("worker's id")));
        ids.collect()
    }

    /// Records that a worker must be empty, or need not be any more.
    pub(crate) async fn set_drained(&self, id: &WorkerId, drained: bool, now_unix_s: i64) -> Result<(), StoreError> {
        let statement = match drained {
            true => {
                "INSERT INTO drained_workers (worker, since_unix_s) VALUES ($1, $2) ON CONFLICT (worker) DO NOTHING"
            }
            false => "DELETE FROM drained_workers WHERE worker = $1 AND $2 >= 0",
        };
        sqlx::query(statement)
            .bind(id.as_str())
            .bind(now_unix_s)
            .execute(&self.writes)
            .await
            .map_err(failed("note a drained worker"))?;
        Ok(())
    }
}
