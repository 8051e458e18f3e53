//! Which scheduler leads: a row that its holder renews, by the database's clock, which all schedulers share.

use super::{Dialect, Store, StoreError, failed};

/// The answer to a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ElectionOutcome {
    /// The candidate leads until the requested time is over. The term grows with each change of hands.
    Won { term: i64 },
    /// Another leads and is reached at this address.
    LedBy { address: String },
}

impl Store {
    /// Whether more than one scheduler can use this database.
    pub(crate) fn is_shared(&self) -> bool {
        self.dialect != Dialect::Sqlite
    }

    /// Takes the lead for `hold_ms` from now on, if no other scheduler has it.
    pub(crate) async fn lead(&self, holder: &str, address: &str, hold_ms: i64) -> Result<ElectionOutcome, StoreError> {
        let doing = "tell who leads";
        let now = self.dialect.now_unix_ms();
        let sql = format!(
            "INSERT INTO leader (one, holder, address, until_unix_ms, term) VALUES (1, $1, $2, {now} + $3, 1) \
             ON CONFLICT (one) DO UPDATE SET \
             term = CASE WHEN leader.holder = $1 THEN leader.term ELSE leader.term + 1 END, \
             holder = $1, address = $2, until_unix_ms = {now} + $3 \
             WHERE leader.holder = $1 OR leader.until_unix_ms < {now} RETURNING term"
        );
        let term: Option<i64> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(holder)
            .bind(address)
            .bind(hold_ms)
            .fetch_optional(&self.writes)
            .await
            .map_err(failed(doing))?;
        if let Some(term) = term {
            return Ok(ElectionOutcome::Won { term });
        }
        let address: String = sqlx::query_scalar("SELECT address FROM leader WHERE one = 1")
            .fetch_one(&self.pool)
            .await
            .map_err(failed(doing))?;
        Ok(ElectionOutcome::LedBy { address })
    }

    /// Gives the lead up: another may take it at once.
    pub(crate) async fn step_down(&self, holder: &str) -> Result<(), StoreError> {
        sqlx::query("UPDATE leader SET until_unix_ms = 0 WHERE holder = $1")
            .bind(holder)
            .execute(&self.writes)
            .await
            .map_err(failed("step down"))?;
        Ok(())
    }
}
