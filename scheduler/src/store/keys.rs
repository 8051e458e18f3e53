//! Keys of the API, each as its hash.

use std::collections::BTreeMap;

use rekindle_wire::access::{KeyId, Scope};
use rekindle_wire::api::KeySummary;

use super::{Store, StoreError, failed, unreadable};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredKey {
    /// Hash of the key. Comparing hashes takes constant time.
    pub(crate) hash: blake3::Hash,
    pub(crate) summary: KeySummary,
}

impl StoredKey {
    /// Where its holder has its role.
    pub(crate) fn scope(&self) -> Scope {
        Scope::of(self.summary.namespace.clone(), self.summary.function.as_ref())
    }
}

type Row = (
    String,
    String,
    String,
    String,
    Vec<u8>,
    String,
    i64,
    Option<i64>,
    Option<i64>,
);

impl Store {
    pub(crate) async fn keys(&self) -> Result<Vec<StoredKey>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT id, name, role, scope, hash, created_by, created_unix_s, expires_unix_s, used_unix_s FROM api_keys",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the keys"))?;
        rows.into_iter().map(read).collect()
    }

    pub(crate) async fn add_key(&self, key: &StoredKey) -> Result<(), StoreError> {
        let summary = &key.summary;
        sqlx::query(
            "INSERT INTO api_keys (id, name, role, scope, hash, created_by, created_unix_s, expires_unix_s) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(summary.id.as_str())
        .bind(&summary.name)
        .bind(summary.role.as_str())
        .bind(key.scope().to_string())
        .bind(&key.hash.as_bytes()[..])
        .bind(&summary.created_by)
        .bind(summary.created_unix_s)
        .bind(summary.expires_unix_s)
        .execute(&self.writes)
        .await
        .map(drop)
        .map_err(failed("add a key"))
    }

    pub(crate) async fn remove_keys(&self, ids: &[KeyId]) -> Result<(), StoreError> {
        for id in ids {
            sqlx::query("DELETE FROM api_keys WHERE id = $1")
                .bind(id.as_str())
                .execute(&self.writes)
                .await
                .map_err(failed("remove a key"))?;
        }
        Ok(())
    }

    /// Records when keys were used last.
    pub(crate) async fn note_keys_used(&self, used: &BTreeMap<KeyId, i64>) -> Result<(), StoreError> {
        if used.is_empty() {
            return Ok(());
        }
        let doing = "note when keys were used";
        let mut tx = self.begin(doing).await?;
        for (id, at) in used {
            sqlx::query("UPDATE api_keys SET used_unix_s = $1 WHERE id = $2")
                .bind(*at)
                .bind(id.as_str())
                .execute(&mut *tx)
                .await
                .map_err(failed(doing))?;
        }
        tx.commit().await.map_err(failed(doing))
    }
}

fn read(row: Row) -> Result<StoredKey, StoreError> {
    let (id, name, role, scope, hash, created_by, created_unix_s, expires_unix_s, used_unix_s) = row;
    let scope: Scope = scope.parse().map_err(unreadable("api_keys.scope"))?;
    let role = role.parse().map_err(std::io::Error::other);
    Ok(StoredKey {
        hash: blake3::Hash::from_slice(&hash).map_err(unreadable("api_keys.hash"))?,
        summary: KeySummary {
            id: id.parse().map_err(unreadable("api_keys.id"))?,
            name,
            role: role.map_err(unreadable("api_keys.role"))?,
            namespace: scope.namespace(),
            function: scope.function(),
            created_by,
            created_unix_s,
            expires_unix_s,
            used_unix_s,
        },
    })
}

#[cfg(test)]
mod tests {
    use rekindle_wire::access::{AccessRole, generate};

    use super::super::tests::each_database;
    use super::*;

    fn key(role: AccessRole, scope: &str, expires_unix_s: Option<i64>) -> StoredKey {
        let (id, key) = generate();
        let scope: Scope = scope.parse().unwrap();
        StoredKey {
            hash: blake3::hash(key.as_bytes()),
            summary: KeySummary {
                id,
                name: "of the tests".to_owned(),
                role,
                namespace: scope.namespace(),
                function: scope.function(),
                created_by: "admin".to_owned(),
                created_unix_s: 7,
                expires_unix_s,
                used_unix_s: None,
            },
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_is_there_with_its_last_use_until_it_is_revoked() {
        each_database(async |store| {
            let mut keys = [
                key(AccessRole::Admin, "*", None),
                key(AccessRole::Reader, "*.team", Some(9)),
                key(AccessRole::Invoker, "hello", None),
            ];
            for key in &keys {
                store.add_key(key).await.unwrap();
            }
            let used = BTreeMap::from([(keys[1].summary.id.clone(), 8), (generate().0, 9)]);
            store.note_keys_used(&used).await.unwrap();
            keys[1].summary.used_unix_s = Some(8);
            let all = async || {
                let mut all = store.keys().await.unwrap();
                all.sort_by_key(|key| keys.iter().position(|k| k.summary.id == key.summary.id));
                all
            };
            assert_eq!(all().await, keys);
            store.remove_keys(&[keys[0].summary.id.clone()]).await.unwrap();
            assert_eq!(all().await, keys[1..]);
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_namespace_goes_with_its_keys_unless_it_has_functions() {
        each_database(async |store| {
            let team = "team".parse().unwrap();
            for _ in 0..2 {
                store.add_namespace(&team, 7).await.unwrap();
            }
            assert!(store.namespaces().await.unwrap().contains(&team));
            assert_eq!(store.namespace_made(&team).await.unwrap(), Some(7));
            let own = key(AccessRole::Reader, "*.team", None);
            store.add_key(&own).await.unwrap();
            let ids = [own.summary.id];
            let function = "hello.team".parse().unwrap();
            let config = crate::fixture::parsed("hello");
            store.add_version(&function, &config, "sources/a", 7).await.unwrap();
            assert!(!store.remove_namespace(&team, &ids, &[]).await.unwrap());
            assert_eq!(store.keys().await.unwrap().len(), 1);
            store.fail_unfinished().await.unwrap();
            store.delete_function(&function, 7).await.unwrap();
            assert!(store.remove_namespace(&team, &ids, &[]).await.unwrap());
            assert_eq!(store.keys().await.unwrap(), []);
            assert!(!store.namespaces().await.unwrap().contains(&team));
            assert_eq!(store.namespace_made(&team).await.unwrap(), None);
            let refused = store.add_version(&function, &config, "sources/a", 7).await;
            assert!(refused.is_err(), "there is no such namespace");
        })
        .await;
    }
}
