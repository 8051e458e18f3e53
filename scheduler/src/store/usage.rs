//! What was observed of functions' calls, for a scheduler that starts.

use rekindle_retention::Noted;
use rekindle_wire::FunctionName;
use rekindle_wire::ids::GatewayId;

use super::{Store, StoreError, failed, json, parsed, unreadable};
use crate::traffic::Counts;

impl Store {
    /// Every count.
    pub(crate) async fn invocation_counts(&self) -> Result<Vec<Counts>, StoreError> {
        let rows: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT name, gateway, counts FROM invocation_counts JOIN functions ON functions.id = function_id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read what was counted"))?;
        let read = |(name, gateway, counts): (String, String, String)| {
            let gateway = match gateway.as_str() {
                "" => None,
                id => Some(id.parse().map_err(unreadable("invocation_counts.gateway"))?),
            };
            let name = name.parse().map_err(unreadable("functions.name"))?;
            Ok((gateway, name, parsed("invocation_counts.counts", &counts)?))
        };
        Ok(rows.into_iter().map(read).filter_map(readable).collect())
    }

    /// Every histogram of idle times.
    pub(crate) async fn idle_times(&self) -> Result<Vec<(FunctionName, Noted)>, StoreError> {
        let rows: Vec<(String, String)> =
            sqlx::query_as("SELECT name, histogram FROM idle_times JOIN functions ON functions.id = function_id")
                .fetch_all(&self.pool)
                .await
                .map_err(failed("read idle times"))?;
        let read = |(name, histogram): (String, String)| {
            let name = name.parse().map_err(unreadable("functions.name"))?;
            Ok((name, parsed("idle_times.histogram", &histogram)?))
        };
        Ok(rows.into_iter().map(read).filter_map(readable).collect())
    }

    /// Replaces what was stored by these, and removes what `folded` gateways had counted. All or nothing. Entries for
    /// unknown functions are skipped.
    pub(crate) async fn note_usage(
        &self,
        counts: &[Counts],
        folded: &[GatewayId],
        learned: &[(FunctionName, Noted)],
    ) -> Result<(), StoreError> {
        let doing = "note what was counted";
        let mut tx = self.begin(doing).await?;
        for gateway in folded {
            sqlx::query("DELETE FROM invocation_counts WHERE gateway = $1")
                .bind(gateway.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed(doing))?;
        }
        for (gateway, name, traffic) in counts {
            sqlx::query(
                "INSERT INTO invocation_counts (function_id, gateway, counts) SELECT id, $1, $2 FROM functions WHERE name = $3 \
                 ON CONFLICT (function_id, gateway) DO UPDATE SET counts = excluded.counts",
            )
            .bind(gateway.as_ref().map_or("", GatewayId::as_str))
            .bind(json(traffic)?)
            .bind(name.as_str())
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        }
        for (name, noted) in learned {
            sqlx::query(
                "INSERT INTO idle_times (function_id, histogram) SELECT id, $1 FROM functions WHERE name = $2 \
                 ON CONFLICT (function_id) DO UPDATE SET histogram = excluded.histogram",
            )
            .bind(json(noted)?)
            .bind(name.as_str())
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        }
        tx.commit().await.map_err(failed(doing))
    }
}

/// An unreadable statistic is skipped: nothing depends on it.
fn readable<T>(row: Result<T, StoreError>) -> Option<T> {
    row.inspect_err(|error| {
        let error = error as &dyn std::error::Error;
        tracing::warn!(error, "something that was counted is left out");
    })
    .ok()
}
