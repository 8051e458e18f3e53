//! Which runtime snapshots versions begin as: by runtime, namespace and, unless all of it share one, function.

use rekindle_wire::function_config::Base;
use rekindle_wire::internal::{RuntimeSnapshot, Sharers};

use super::{Store, StoreError, failed, json, parsed};

/// The namespace and the function's name in a row. Where all of a namespace share a snapshot, the name is empty.
fn key(sharers: Sharers<'_>) -> (&str, &str) {
    match sharers {
        Sharers::Function(id) => (id.namespace(), id.name()),
        Sharers::Namespace(namespace) => (namespace, ""),
    }
}

impl Store {
    /// The runtime snapshot that these versions begin as.
    pub(crate) async fn runtime_snapshot(
        &self,
        runtime: Base,
        sharers: Sharers<'_>,
    ) -> Result<Option<RuntimeSnapshot>, StoreError> {
        let (namespace, function) = key(sharers);
        let named: Option<String> = sqlx::query_scalar(
            "SELECT named FROM runtime_snapshots WHERE namespace = $1 AND runtime = $2 AND function = $3",
        )
        .bind(namespace)
        .bind(runtime.as_str())
        .bind(function)
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read a runtime's snapshot"))?;
        named.map(|named| parsed("runtime_snapshots.named", &named)).transpose()
    }

    /// Records that versions begin as this one from now on.
    pub(crate) async fn keep_runtime_snapshot(
        &self,
        runtime: Base,
        sharers: Sharers<'_>,
        named: &RuntimeSnapshot,
    ) -> Result<(), StoreError> {
        let (namespace, function) = key(sharers);
        sqlx::query(
            "INSERT INTO runtime_snapshots (namespace, runtime, function, named) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (namespace, runtime, function) DO UPDATE SET named = $4",
        )
        .bind(namespace)
        .bind(runtime.as_str())
        .bind(function)
        .bind(json(named)?)
        .execute(&self.writes)
        .await
        .map_err(failed("keep a runtime's snapshot"))?;
        Ok(())
    }
}
