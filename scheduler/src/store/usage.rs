//! What was observed of functions' calls, for a scheduler that starts.

use rekindle_retention::StoredHistogram;
use rekindle_wire::FunctionId;
use rekindle_wire::ids::GatewayId;

use super::{Store, StoreError, failed, function_id, json, parsed, unreadable};
use crate::traffic::Counts;

impl Store {
    pub(crate) async fn invocation_counts(&self) -> Result<Vec<Counts>, StoreError> {
        let rows: Vec<(String, String, String, String)> = sqlx::query_as(
            "SELECT namespace, name, gateway, counts FROM invocation_counts JOIN functions ON functions.id = \
            function_id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read what was counted"))?;
        let read = |(namespace, name, gateway, counts): (String, String, String, String)| {
            let gateway = match gateway.as_str() {
                "" => None,
                id => Some(id.parse().map_err(unreadable("invocation_counts.gateway"))?),
            };
            let name = function_id(&namespace, &name)?;
            Ok((gateway, name, parsed("invocation_counts.counts", &counts)?))
        };
        Ok(rows.into_iter().map(read).filter_map(readable).collect())
    }

    pub(crate) async fn idle_times(&self) -> Result<Vec<(FunctionId, StoredHistogram)>, StoreError> {
        let rows: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT namespace, name, histogram FROM idle_times JOIN functions ON functions.id = function_id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read idle times"))?;
        let read = |(namespace, name, histogram): (String, String, String)| {
            Ok((
                function_id(&namespace, &name)?,
                parsed("idle_times.histogram", &histogram)?,
            ))
        };
        Ok(rows.into_iter().map(read).filter_map(readable).collect())
    }

    /// Replaces what was stored by these, and removes what `folded` gateways had counted. All or nothing. Entries for
    /// unknown functions are skipped.
    pub(crate) async fn note_usage(
        &self,
        counts: &[Counts],
        folded: &[GatewayId],
        learned: &[(FunctionId, StoredHistogram)],
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
                "INSERT INTO invocation_counts (function_id, gateway, counts) \
                 SELECT id, $1, $2 FROM functions WHERE namespace = $3 AND name = $4 \
                 ON CONFLICT (function_id, gateway) DO UPDATE SET counts = excluded.counts",
            )
            .bind(gateway.as_ref().map_or("", GatewayId::as_str))
            .bind(json(traffic)?)
            .bind(name.namespace())
            .bind(name.name())
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        }
        for (name, noted) in learned {
            sqlx::query(
                "INSERT INTO idle_times (function_id, histogram) SELECT id, $1 FROM functions WHERE namespace = $2 \
                AND name = $3 \
                 ON CONFLICT (function_id) DO UPDATE SET histogram = excluded.histogram",
            )
            .bind(json(noted)?)
            .bind(name.namespace())
            .bind(name.name())
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
