//! Queries of a collection of the object store: which versions exist and what they need, and which are too old to keep.

use std::collections::HashSet;

use rekindle_wire::api::VersionState;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{FunctionId, VersionNumber};
use uuid::Uuid;

use super::{Store, StoreError, failed, function_id, unreadable, version_state};

#[derive(Debug)]
pub(crate) struct KeptVersion {
    pub(crate) function: FunctionId,
    pub(crate) version: VersionNumber,
    /// Its specification once it is live; `None` while its deploy is in progress.
    pub(crate) spec: Option<VersionSpec>,
}

/// Versions beyond the newest `$1` of their function. Left out are those that an alias names, those in progress, and
/// the one that served last before what is live, because a rollback goes there. Failed ones are counted apart: they
/// must not crowd out those that can serve.
const TOO_OLD: &str = "SELECT f.namespace, f.name, v.function_id, v.number FROM ( \
     SELECT function_id, number, state, ROW_NUMBER() OVER ( \
     PARTITION BY function_id, CASE WHEN state = 'failed' THEN 1 ELSE 0 END ORDER BY number DESC) AS place \
     FROM versions) v JOIN functions f ON f.id = v.function_id \
     WHERE v.place > $1 AND v.state IN ('live', 'failed') AND NOT EXISTS \
     (SELECT 1 FROM aliases a WHERE a.function_id = v.function_id AND a.number = v.number) AND v.number <> \
     COALESCE((SELECT p.number FROM versions p WHERE p.function_id = v.function_id AND p.state = 'live' \
     AND p.served > 0 AND NOT EXISTS (SELECT 1 FROM aliases l WHERE l.function_id = p.function_id AND l.name = 'live' \
     AND l.number = p.number) ORDER BY p.served DESC LIMIT 1), 0)";

impl Store {
    /// This scheduler's id, created with the database.
    pub(crate) async fn platform_id(&self) -> Result<String, StoreError> {
        let doing = "read its own id";
        let mut tx = self.begin(doing).await?;
        let known: Option<String> = sqlx::query_scalar("SELECT id FROM platform")
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(doing))?;
        if let Some(id) = known {
            return Ok(id);
        }
        let id = format!("p-{}", Uuid::new_v4().simple());
        sqlx::query("INSERT INTO platform (id) VALUES ($1)")
            .bind(&id)
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(id)
    }

    /// Every version that is live or in progress.
    pub(crate) async fn kept(&self) -> Result<Vec<KeptVersion>, StoreError> {
        let rows: Vec<(String, String, i64, String, Option<String>)> = sqlx::query_as(
            "SELECT f.namespace, f.name, v.number, v.state, v.spec FROM versions v JOIN functions f ON f.id = \
            v.function_id \
             WHERE v.state <> 'failed'",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the versions"))?;
        let kept = rows.into_iter().map(|(namespace, name, number, state, spec)| {
            let (function, version) = named(&namespace, &name, number)?;
            let state = version_state(&state)?;
            let spec = spec
                .filter(|_| state == VersionState::Live)
                .map(|s| serde_json::from_str(&s));
            Ok(KeptVersion {
                function,
                version,
                spec: spec.transpose().map_err(unreadable("versions.spec"))?,
            })
        });
        kept.collect()
    }

    /// The folders that versions came from.
    pub(crate) async fn source_keys(&self) -> Result<HashSet<String>, StoreError> {
        let keys: Vec<String> = sqlx::query_scalar("SELECT DISTINCT source_key FROM versions")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read the sources"))?;
        Ok(keys.into_iter().collect())
    }

    /// Versions beyond the newest `keep` of their function, without those that an alias names and those in progress.
    pub(crate) async fn too_old(&self, keep: u32) -> Result<Vec<(FunctionId, VersionNumber)>, StoreError> {
        let rows: Vec<(String, String, i64, i64)> = sqlx::query_as(TOO_OLD)
            .bind(i64::from(keep))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("look for old versions"))?;
        rows.into_iter()
            .map(|(namespace, name, _, number)| named(&namespace, &name, number))
            .collect()
    }

    /// Removes those versions and returns them.
    pub(crate) async fn remove_too_old(&self, keep: u32) -> Result<Vec<(FunctionId, VersionNumber)>, StoreError> {
        let doing = "remove old versions";
        let mut tx = self.begin(doing).await?;
        let rows: Vec<(String, String, i64, i64)> = sqlx::query_as(TOO_OLD)
            .bind(i64::from(keep))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed(doing))?;
        for (_, _, function, number) in &rows {
            for statement in [
                "DELETE FROM renewals WHERE function_id = $1 AND number = $2",
                "DELETE FROM versions WHERE function_id = $1 AND number = $2",
            ] {
                sqlx::query(statement)
                    .bind(function)
                    .bind(number)
                    .execute(&mut *tx)
                    .await
                    .map_err(failed(doing))?;
            }
        }
        tx.commit().await.map_err(failed(doing))?;
        rows.into_iter()
            .map(|(namespace, name, _, number)| named(&namespace, &name, number))
            .collect()
    }
}

pub(super) fn named(namespace: &str, name: &str, number: i64) -> Result<(FunctionId, VersionNumber), StoreError> {
    let function = function_id(namespace, name)?;
    let version = u32::try_from(number).map_err(unreadable("versions.number"))?;
    Ok((function, VersionNumber(version)))
}
