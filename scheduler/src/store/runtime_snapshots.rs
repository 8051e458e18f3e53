//! Which runtime snapshots versions begin as: by runtime and, unless they are shared by all, by function.

use rekindle_wire::FunctionName;
use rekindle_wire::internal::RuntimeSnapshot;
use rekindle_wire::manifest::Runtime;

use super::{Store, StoreError, failed, json, parsed};

impl Store {
    /// The runtime snapshot of a function, or of all.
    pub(crate) async fn runtime_snapshot(
        &self,
        runtime: Runtime,
        function: Option<&FunctionName>,
    ) -> Result<Option<RuntimeSnapshot>, StoreError> {
        let named: Option<String> =
            sqlx::query_scalar("SELECT named FROM runtime_snapshots WHERE runtime = $1 AND function = $2")
                .bind(runtime.as_str())
                .bind(function.map_or("", FunctionName::as_str))
                .fetch_optional(&self.pool)
                .await
                .map_err(failed("read a runtime's snapshot"))?;
        named.map(|named| parsed("runtime_snapshots.named", &named)).transpose()
    }

    /// Records that versions begin as this one from now on.
    pub(crate) async fn keep_runtime_snapshot(
        &self,
        runtime: Runtime,
        function: Option<&FunctionName>,
        named: &RuntimeSnapshot,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO runtime_snapshots (runtime, function, named) VALUES ($1, $2, $3) \
             ON CONFLICT (runtime, function) DO UPDATE SET named = $3",
        )
        .bind(runtime.as_str())
        .bind(function.map_or("", FunctionName::as_str))
        .bind(json(named)?)
        .execute(&self.writes)
        .await
        .map_err(failed("keep a runtime's snapshot"))?;
        Ok(())
    }
}
