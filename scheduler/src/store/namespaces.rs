//! Namespaces.

use std::collections::BTreeSet;

use rekindle_wire::Namespace;
use rekindle_wire::access::{KeyId, RuleId};

use super::{Store, StoreError, failed, unreadable};

impl Store {
    pub(crate) async fn namespaces(&self) -> Result<BTreeSet<Namespace>, StoreError> {
        let names: Vec<String> = sqlx::query_scalar("SELECT name FROM namespaces")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list the namespaces"))?;
        let parsed = names
            .iter()
            .map(|name| name.parse().map_err(unreadable("namespaces.name")));
        parsed.collect()
    }

    /// When a namespace was made, in seconds since the Unix epoch; `None` if there is none.
    pub(crate) async fn namespace_made(&self, namespace: &Namespace) -> Result<Option<i64>, StoreError> {
        sqlx::query_scalar("SELECT created_unix_s FROM namespaces WHERE name = $1")
            .bind(namespace.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("look when a namespace was made"))
    }

    /// Stores a namespace, unless there is one of that name.
    pub(crate) async fn add_namespace(&self, namespace: &Namespace, now_unix_s: i64) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO namespaces (name, created_unix_s) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
            .bind(namespace.as_str())
            .bind(now_unix_s)
            .execute(&self.writes)
            .await
            .map(drop)
            .map_err(failed("add a namespace"))
    }

    /// Removes a namespace with these keys and rules of its own, with the key of its snapshots, and with its calls. The
    /// next namespace of that name may be somebody else's. Its functions' version numbers stay, so that no two versions
    /// are one. Returns whether it had no functions; otherwise nothing is done.
    pub(crate) async fn remove_namespace(
        &self,
        namespace: &Namespace,
        keys: &[KeyId],
        rules: &[RuleId],
    ) -> Result<bool, StoreError> {
        let doing = "remove a namespace";
        let mut tx = self.begin(doing).await?;
        let functions: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM functions WHERE namespace = $1")
            .bind(namespace.as_str())
            .fetch_one(&mut *tx)
            .await
            .map_err(failed(doing))?;
        if functions > 0 {
            return Ok(false);
        }
        let keys = keys
            .iter()
            .map(|id| ("DELETE FROM api_keys WHERE id = $1", id.as_str()));
        let rules = rules
            .iter()
            .map(|id| ("DELETE FROM access_rules WHERE id = $1", id.as_str()));
        for (statement, id) in keys.chain(rules) {
            sqlx::query(statement)
                .bind(id)
                .execute(&mut *tx)
                .await
                .map_err(failed(doing))?;
        }
        for statement in [
            "DELETE FROM runtime_snapshots WHERE namespace = $1",
            "DELETE FROM quotas WHERE namespace = $1",
            "DELETE FROM snapshot_keys WHERE namespace = $1",
            "DELETE FROM async_calls WHERE namespace = $1",
            "DELETE FROM namespaces WHERE name = $1",
        ] {
            sqlx::query(statement)
                .bind(namespace.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed(doing))?;
        }
        tx.commit().await.map_err(failed(doing))?;
        Ok(true)
    }
}
