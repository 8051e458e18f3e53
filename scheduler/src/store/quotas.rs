//! Quotas of namespaces, and what is stored of each function.

use std::collections::HashMap;

use rekindle_wire::api::Quota;
use rekindle_wire::{FunctionId, Namespace};

use super::{Store, StoreError, failed, function_id, json, parsed, unreadable};

impl Store {
    /// The limits that were set, by namespace.
    pub(crate) async fn quotas(&self) -> Result<HashMap<String, Quota>, StoreError> {
        let rows: Vec<(String, String)> = sqlx::query_as("SELECT namespace, limits FROM quotas")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read quotas"))?;
        rows.into_iter()
            .map(|(namespace, limits)| Ok((namespace, parsed("quotas.limits", &limits)?)))
            .collect()
    }

    /// Sets a namespace's limits, or clears them.
    pub(crate) async fn set_quota(&self, namespace: &Namespace, limits: Option<&Quota>) -> Result<(), StoreError> {
        let query = match limits {
            Some(limits) => sqlx::query(
                "INSERT INTO quotas (namespace, limits) VALUES ($1, $2) \
                 ON CONFLICT (namespace) DO UPDATE SET limits = excluded.limits",
            )
            .bind(namespace.as_str())
            .bind(json(limits)?),
            None => sqlx::query("DELETE FROM quotas WHERE namespace = $1").bind(namespace.as_str()),
        };
        query
            .execute(&self.writes)
            .await
            .map(drop)
            .map_err(failed("set a quota"))
    }

    /// Bytes of each function's uploaded folders, layers and snapshots, of one namespace or of all. What versions of a
    /// function share counts once; what functions share counts for each.
    pub(crate) async fn stored(&self, namespace: Option<&Namespace>) -> Result<Vec<(FunctionId, u64)>, StoreError> {
        let of = |part: &str, bytes: &str| {
            format!(
                "SELECT f.namespace AS namespace, f.name AS name, {part} AS part, \
                 MAX(COALESCE(CAST({bytes} AS BIGINT), 0)) AS bytes \
                 FROM versions v JOIN functions f ON f.id = v.function_id \
                 WHERE ($1 = '' OR f.namespace = $1) GROUP BY f.namespace, f.name, {part}"
            )
        };
        let field = |column, path: &[&str]| self.dialect.json_field(column, path);
        let layer = of(
            &field("v.spec", &["layer", "digest"]),
            &field("v.spec", &["layer", "tar_bytes"]),
        );
        let snapshot = of(&field("v.snapshot", &["id"]), &field("v.snapshot", &["stored_bytes"]));
        let sql = format!(
            "SELECT namespace, name, CAST(SUM(bytes) AS BIGINT) FROM ({} UNION ALL {layer} UNION ALL {snapshot}) parts \
             GROUP BY namespace, name",
            of("v.source_key", "v.source_bytes")
        );
        let rows: Vec<(String, String, i64)> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(namespace.map_or("", Namespace::as_str))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("add up what is stored"))?;
        rows.into_iter()
            .map(|(namespace, name, bytes)| {
                let bytes = u64::try_from(bytes).map_err(unreadable("versions.source_bytes"))?;
                Ok((function_id(&namespace, &name)?, bytes))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::each_database;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_quota_is_set_replaced_and_cleared() {
        each_database(async |store| {
            let team: Namespace = "team".parse().unwrap();
            let mut limits = Quota {
                instances: Some(3),
                ..Quota::default()
            };
            store.set_quota(&team, Some(&limits)).await.unwrap();
            (limits.instances, limits.builds) = (None, Some(1));
            store.set_quota(&team, Some(&limits)).await.unwrap();
            assert_eq!(
                store.quotas().await.unwrap(),
                HashMap::from([("team".to_owned(), limits)])
            );
            store.set_quota(&team, None).await.unwrap();
            store.set_quota(&team, None).await.unwrap();
            assert!(store.quotas().await.unwrap().is_empty());
        })
        .await;
    }
}
