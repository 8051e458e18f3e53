//! Which runtime snapshots versions begin as: by runtime and, unless they are shared by all, by function.

use rekindle_wire::FunctionId;
use rekindle_wire::internal::RuntimeSnapshot;
use rekindle_wire::manifest::Base;

use super::{Store, StoreError, failed, json, parsed};

/// Namespace and name under which the snapshot of all functions is.
const ALL: (&str, &str) = ("default", "");

impl Store {
    /// The runtime snapshot of a function, or of all.
    pub(crate) async fn runtime_snapshot(
        &self,
        runtime: Base,
        function: Option<&FunctionId>,
    ) -> Result<Option<RuntimeSnapshot>, StoreError> {
        let named: Option<String> = sqlx::query_scalar(
            "SELECT named FROM runtime_snapshots WHERE namespace = $1 AND runtime = $2 AND function = $3",
        )
        .bind(function.map_or(ALL.0, FunctionId::namespace))
        .bind(runtime.as_str())
        .bind(function.map_or(ALL.1, FunctionId::name))
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read a runtime's snapshot"))?;
        named.map(|named| parsed("runtime_snapshots.named", &named)).transpose()
    }

    /// Records that versions begin as this one from now on.
    pub(crate) async fn keep_runtime_snapshot(
        &self,
        runtime: Base,
        function: Option<&FunctionId>,
        named: &RuntimeSnapshot,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO runtime_snapshots (namespace, runtime, function, named) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (namespace, runtime, function) DO UPDATE SET named = $4",
        )
        .bind(function.map_or(ALL.0, FunctionId::namespace))
        .bind(runtime.as_str())
        .bind(function.map_or(ALL.1, FunctionId::name))
        .bind(json(named)?)
        .execute(&self.writes)
        .await
        .map_err(failed("keep a runtime's snapshot"))?;
        Ok(())
    }
}
