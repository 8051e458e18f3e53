//! Workers that have been heard from, with their address and since when. A record for the operator; heartbeats say what
//! is true now.

use rekindle_wire::internal::Heartbeat;

use super::{Store, StoreError, failed};

impl Store {
    /// Records a worker that is new, has moved or was restarted.
    pub(crate) async fn note_worker(&self, beat: &Heartbeat, now_unix_s: i64) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO workers (id, address, incarnation, since_unix_s) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (id) DO UPDATE SET address = $2, incarnation = $3, since_unix_s = $4",
        )
        .bind(beat.worker.as_str())
        .bind(&beat.address)
        .bind(beat.incarnation.to_string())
        .bind(now_unix_s)
        .execute(&self.writes)
        .await
        .map_err(failed("note a worker"))?;
        Ok(())
    }
}
