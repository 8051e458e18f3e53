//! Functions: created with their first version, removed with all of them.

use rekindle_wire::{ApiError, ErrorCode, FunctionId, SnapshotId};

use super::{Store, StoreError, failed, function_id, unreadable, version_state};

/// What a deleted function leaves in the object store.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct OrphanedObjects {
    pub(crate) snapshots: Vec<SnapshotId>,
    /// Uploaded folders that no other version uses.
    pub(crate) source_keys: Vec<String>,
}

impl Store {
    /// Every function, with the number that its user id follows from.
    pub(crate) async fn functions(&self) -> Result<Vec<(FunctionId, i64)>, StoreError> {
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as("SELECT namespace, name, id FROM functions ORDER BY namespace, name")
                .fetch_all(&self.pool)
                .await
                .map_err(failed("list the functions"))?;
        rows.into_iter()
            .map(|(namespace, name, id)| Ok((function_id(&namespace, &name)?, id)))
            .collect()
    }

    /// Whether a version came from the folder at `source_key`.
    pub(crate) async fn uses_source(&self, source_key: &str) -> Result<bool, StoreError> {
        let users: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM versions WHERE source_key = $1")
            .bind(source_key)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("look for a source's versions"))?;
        Ok(users > 0)
    }

    /// Removes a function and its versions, and gives up its queued calls. Returns `None` if there is no function of
    /// that name. Refused while a version is being prepared.
    pub(crate) async fn delete_function(
        &self,
        name: &FunctionId,
        now_unix_ms: i64,
    ) -> Result<Option<OrphanedObjects>, StoreError> {
        let doing = "delete a function";
        let mut tx = self.begin(doing).await?;
        let id: Option<i64> = sqlx::query_scalar("SELECT id FROM functions WHERE namespace = $1 AND name = $2")
            .bind(name.namespace())
            .bind(name.name())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(doing))?;
        let Some(id) = id else {
            return Ok(None);
        };
        let versions: Vec<(String, Option<String>, String)> =
            sqlx::query_as("SELECT state, spec, source_key FROM versions WHERE function_id = $1")
                .bind(id)
                .fetch_all(&mut *tx)
                .await
                .map_err(failed(doing))?;
        for (state, ..) in &versions {
            if !version_state(state)?.is_final() {
                return Err(StoreError::Busy(name.clone()));
            }
        }
        let gone = ApiError::new(
            ErrorCode::FunctionNotFound,
            format!("function {name} was deleted before it answered"),
        );
        let replaced: Vec<String> =
            sqlx::query_scalar("SELECT snapshot FROM replaced_snapshots WHERE function_id = $1")
                .bind(id)
                .fetch_all(&mut *tx)
                .await
                .map_err(failed(doing))?;
        Self::abandon_calls(&mut tx, name, &gone, now_unix_ms).await?;
        for statement in [
            "DELETE FROM invocation_counts WHERE function_id = $1",
            "DELETE FROM idle_times WHERE function_id = $1",
            "DELETE FROM renewals WHERE function_id = $1",
            "DELETE FROM replaced_snapshots WHERE function_id = $1",
            "DELETE FROM aliases WHERE function_id = $1",
            "DELETE FROM canaries WHERE function_id = $1",
            "DELETE FROM schedules WHERE function_id = $1",
            "DELETE FROM versions WHERE function_id = $1",
            "DELETE FROM functions WHERE id = $1",
        ] {
            sqlx::query(statement)
                .bind(id)
                .execute(&mut *tx)
                .await
                .map_err(failed(doing))?;
        }
        sqlx::query("DELETE FROM runtime_snapshots WHERE namespace = $1 AND function = $2")
            .bind(name.namespace())
            .bind(name.name())
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        let mut leftovers = OrphanedObjects::default();
        for snapshot in replaced {
            let snapshot = snapshot.parse().map_err(unreadable("replaced_snapshots.snapshot"))?;
            leftovers.snapshots.push(snapshot);
        }
        for (_, spec, source_key) in versions {
            let spec: Option<rekindle_wire::internal::VersionSpec> = spec
                .map(|s| serde_json::from_str(&s))
                .transpose()
                .map_err(unreadable("versions.spec"))?;
            // Versions may share one.
            let snapshot = spec
                .and_then(|s| s.snapshot)
                .filter(|s| !leftovers.snapshots.contains(s));
            leftovers.snapshots.extend(snapshot);
            let users: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM versions WHERE source_key = $1")
                .bind(&source_key)
                .fetch_one(&mut *tx)
                .await
                .map_err(failed(doing))?;
            if users == 0 && !leftovers.source_keys.contains(&source_key) {
                leftovers.source_keys.push(source_key);
            }
        }
        tx.commit().await.map_err(failed(doing))?;
        Ok(Some(leftovers))
    }
}
