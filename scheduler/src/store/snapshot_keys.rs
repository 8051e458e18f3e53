//! Keys of namespaces whose snapshots are encrypted. The store never sees one unsealed.

use rekindle_wire::Namespace;

use super::{Store, StoreError, failed, unreadable};

impl Store {
    /// The sealed keys of all namespaces that have one.
    pub(crate) async fn snapshot_keys(&self) -> Result<Vec<(Namespace, Vec<u8>)>, StoreError> {
        let rows: Vec<(String, Vec<u8>)> = sqlx::query_as("SELECT namespace, sealed FROM snapshot_keys")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read the snapshot keys"))?;
        let read = rows.into_iter().map(|(namespace, sealed)| {
            let namespace = namespace.parse().map_err(unreadable("snapshot_keys.namespace"))?;
            Ok((namespace, sealed))
        });
        read.collect()
    }

    /// Stores a namespace's sealed key, unless it has one. Returns the one that it has.
    pub(crate) async fn add_snapshot_key(
        &self,
        namespace: &Namespace,
        sealed: &[u8],
        now_unix_s: i64,
    ) -> Result<Vec<u8>, StoreError> {
        let doing = "add a snapshot key";
        let mut tx = self.begin(doing).await?;
        sqlx::query(
            "INSERT INTO snapshot_keys (namespace, since_unix_s, sealed) VALUES ($1, $2, $3) \
             ON CONFLICT (namespace) DO NOTHING",
        )
        .bind(namespace.as_str())
        .bind(now_unix_s)
        .bind(sealed)
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        let kept = sqlx::query_scalar("SELECT sealed FROM snapshot_keys WHERE namespace = $1")
            .bind(namespace.as_str())
            .fetch_one(&mut *tx)
            .await
            .map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::each_database;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_namespace_keeps_its_first_key_and_loses_it_with_itself() {
        each_database(async |store| {
            let team: Namespace = "team".parse().unwrap();
            store.add_namespace(&team, 7).await.unwrap();
            assert_eq!(store.add_snapshot_key(&team, b"one", 8).await.unwrap(), b"one");
            assert_eq!(store.add_snapshot_key(&team, b"two", 9).await.unwrap(), b"one");
            assert_eq!(store.snapshot_keys().await.unwrap(), [(team.clone(), b"one".to_vec())]);
            assert!(store.remove_namespace(&team, &[], &[]).await.unwrap());
            assert!(store.snapshot_keys().await.unwrap().is_empty());
        })
        .await;
    }
}
