//! Secrets, sealed. The store never sees a value.

use rekindle_wire::{Namespace, SecretName};

use super::{Store, StoreError, failed, unreadable};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredSecret {
    /// How often it was set.
    pub(crate) version: u32,
    pub(crate) set_unix_s: i64,
    /// See [`rekindle_envelope::MasterKey::seal`].
    pub(crate) sealed: Vec<u8>,
}

impl Store {
    pub(crate) async fn secrets(&self) -> Result<Vec<(Namespace, SecretName, StoredSecret)>, StoreError> {
        let rows: Vec<(String, String, i64, i64, Vec<u8>)> =
            sqlx::query_as("SELECT namespace, name, version, set_unix_s, sealed FROM secrets WHERE sealed IS NOT NULL")
                .fetch_all(&self.pool)
                .await
                .map_err(failed("read the secrets"))?;
        let read = rows.into_iter().map(|(namespace, name, version, set_unix_s, sealed)| {
            let stored = StoredSecret {
                version: u32::try_from(version).map_err(unreadable("secrets.version"))?,
                set_unix_s,
                sealed,
            };
            let namespace = namespace.parse().map_err(unreadable("secrets.namespace"))?;
            Ok((namespace, name.parse().map_err(unreadable("secrets.name"))?, stored))
        });
        read.collect()
    }

    /// Stores a sealed value in place of any other. Returns the secret's new version.
    pub(crate) async fn set_secret(
        &self,
        namespace: &Namespace,
        name: &SecretName,
        sealed: &[u8],
        now_unix_s: i64,
    ) -> Result<u32, StoreError> {
        let version: i64 = sqlx::query_scalar(
            "INSERT INTO secrets (namespace, name, version, set_unix_s, sealed) VALUES ($1, $2, 1, $3, $4) \
             ON CONFLICT (namespace, name) DO UPDATE SET version = secrets.version + 1, \
             set_unix_s = excluded.set_unix_s, sealed = excluded.sealed RETURNING version",
        )
        .bind(namespace.as_str())
        .bind(name.as_str())
        .bind(now_unix_s)
        .bind(sealed)
        .fetch_one(&self.writes)
        .await
        .map_err(failed("set a secret"))?;
        u32::try_from(version).map_err(unreadable("secrets.version"))
    }

    /// Removes a secret's value. Returns whether there was one.
    pub(crate) async fn remove_secret(&self, namespace: &Namespace, name: &SecretName) -> Result<bool, StoreError> {
        let removed =
            sqlx::query("UPDATE secrets SET sealed = NULL WHERE namespace = $1 AND name = $2 AND sealed IS NOT NULL")
                .bind(namespace.as_str())
                .bind(name.as_str())
                .execute(&self.writes)
                .await
                .map_err(failed("remove a secret"))?;
        Ok(removed.rows_affected() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::each_database;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_secret_is_one_namespaces_and_its_versions_go_on_when_it_is_removed() {
        each_database(async |store| {
            let (here, there): (Namespace, Namespace) = ("default".parse().unwrap(), "team".parse().unwrap());
            let name: SecretName = "DB_URL".parse().unwrap();
            assert_eq!(store.set_secret(&here, &name, b"one", 7).await.unwrap(), 1);
            assert_eq!(store.set_secret(&here, &name, b"two", 8).await.unwrap(), 2);
            assert_eq!(store.set_secret(&there, &name, b"other", 9).await.unwrap(), 1);
            let stored = |version, set_unix_s, sealed: &[u8]| StoredSecret {
                version,
                set_unix_s,
                sealed: sealed.to_vec(),
            };
            let mut all = store.secrets().await.unwrap();
            all.sort_by_key(|(namespace, ..)| namespace.clone());
            let expected = [
                (here.clone(), name.clone(), stored(2, 8, b"two")),
                (there.clone(), name.clone(), stored(1, 9, b"other")),
            ];
            assert_eq!(all, expected);
            assert!(store.remove_secret(&here, &name).await.unwrap());
            assert!(!store.remove_secret(&here, &name).await.unwrap());
            assert_eq!(store.secrets().await.unwrap(), expected[1..]);
            assert_eq!(store.set_secret(&here, &name, b"three", 10).await.unwrap(), 3);
        })
        .await;
    }
}
