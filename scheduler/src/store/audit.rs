//! The audit log: a chain in which each entry has the hash of the one before.

use rekindle_wire::Namespace;
use rekindle_wire::api::{AuditEntry, AuditPage, AuditPlace};
use sqlx::{Any, Transaction};

use super::{Store, StoreError, failed, unreadable};
use crate::audit::digest::digest;

/// The hash before the first entry.
const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const COLUMNS: &str = "number, unix_ms, actor, namespace, action, object, outcome, request_id, previous, hash";

/// Which entries to read.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditQuery {
    /// Only those with higher numbers.
    pub(crate) after: u64,
    /// Only those at or after this time.
    pub(crate) since_unix_ms: i64,
    /// Only those about this namespace, as long as it has been there: an earlier one of its name was another's.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) limit: u32,
}

type Row = (i64, i64, String, String, String, String, String, String, String, String);

impl Store {
    /// Appends an entry; its number and hashes are set here.
    pub(crate) async fn append_audit(&self, mut entry: AuditEntry) -> Result<AuditEntry, StoreError> {
        let doing = "append to the audit log";
        let mut tx = self.begin(doing).await?;
        let last: Option<(i64, String)> = sqlx::query_as("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1")
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(doing))?;
        let last = match last {
            Some((number, hash)) => place(number, hash)?,
            None => begins_after(&mut tx).await?,
        };
        entry.number = last.number + 1;
        entry.previous = last.hash;
        entry.hash = digest(&entry);
        let sql = format!("INSERT INTO audit ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)");
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(i64::try_from(entry.number).map_err(unreadable("audit.number"))?)
            .bind(entry.unix_ms)
            .bind(&entry.actor)
            .bind(entry.namespace.as_ref().map_or("", Namespace::as_str))
            .bind(&entry.action)
            .bind(&entry.object)
            .bind(&entry.outcome)
            .bind(&entry.request_id)
            .bind(&entry.previous)
            .bind(&entry.hash)
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(entry)
    }

    /// Entries, oldest first.
    pub(crate) async fn audit(&self, wanted: &AuditQuery) -> Result<AuditPage, StoreError> {
        let doing = "read the audit log";
        let mut tx = self.pool.begin().await.map_err(failed(doing))?;
        let begins_after = begins_after(&mut tx).await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM audit WHERE number > $1 AND unix_ms >= $2 AND ($3 = '' OR (namespace = $3 \
             AND unix_ms >= COALESCE((SELECT created_unix_s * 1000 FROM namespaces WHERE name = $3), 0))) \
             ORDER BY number LIMIT $4"
        );
        let rows: Vec<Row> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(i64::try_from(wanted.after).unwrap_or(i64::MAX))
            .bind(wanted.since_unix_ms)
            .bind(wanted.namespace.as_ref().map_or("", Namespace::as_str))
            .bind(i64::from(wanted.limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed(doing))?;
        let entries = rows.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(AuditPage { begins_after, entries })
    }

    /// Removes the oldest entries: those before this time, and those beyond the last `keep`. Returns their number.
    pub(crate) async fn trim_audit(&self, keep: u64, before_unix_ms: i64) -> Result<u64, StoreError> {
        let doing = "trim the audit log";
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let mut tx = self.begin(doing).await?;
        // Clocks may go back: what is removed is all before one entry.
        let last: Option<(i64, String)> = sqlx::query_as(
            "SELECT number, hash FROM audit WHERE number <= (SELECT MAX(number) FROM audit) - $1 \
             OR number < COALESCE((SELECT MIN(number) FROM audit WHERE unix_ms >= $2), \
             (SELECT MAX(number) + 1 FROM audit)) ORDER BY number DESC LIMIT 1",
        )
        .bind(keep)
        .bind(before_unix_ms)
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed(doing))?;
        let Some((number, hash)) = last else {
            return Ok(0);
        };
        sqlx::query(
            "INSERT INTO audit_begins_after (one, number, hash) VALUES (1, $1, $2) \
             ON CONFLICT (one) DO UPDATE SET number = excluded.number, hash = excluded.hash",
        )
        .bind(number)
        .bind(&hash)
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        let removed = sqlx::query("DELETE FROM audit WHERE number <= $1")
            .bind(number)
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(removed.rows_affected())
    }
}

async fn begins_after(tx: &mut Transaction<'static, Any>) -> Result<AuditPlace, StoreError> {
    let found: Option<(i64, String)> = sqlx::query_as("SELECT number, hash FROM audit_begins_after WHERE one = 1")
        .fetch_optional(&mut **tx)
        .await
        .map_err(failed("read where the audit log begins"))?;
    let (number, hash) = found.unwrap_or_else(|| (0, NOTHING.to_owned()));
    place(number, hash)
}

fn place(number: i64, hash: String) -> Result<AuditPlace, StoreError> {
    let number = u64::try_from(number).map_err(unreadable("audit.number"))?;
    Ok(AuditPlace { number, hash })
}

fn read(row: Row) -> Result<AuditEntry, StoreError> {
    let (number, unix_ms, actor, namespace, action, object, outcome, request_id, previous, hash) = row;
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    Ok(AuditEntry {
        number: u64::try_from(number).map_err(unreadable("audit.number"))?,
        unix_ms,
        actor,
        namespace: namespace
            .map(|n| n.parse().map_err(unreadable("audit.namespace")))
            .transpose()?,
        action,
        object,
        outcome,
        request_id,
        previous,
        hash,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::each_database;
    use super::*;

    fn entry(unix_ms: i64, namespace: Option<&str>) -> AuditEntry {
        AuditEntry {
            number: 0,
            unix_ms,
            actor: "admin".to_owned(),
            namespace: namespace.map(|n| n.parse().unwrap()),
            action: "delete_function".to_owned(),
            object: "hello".to_owned(),
            outcome: "ok".to_owned(),
            request_id: "r-1".to_owned(),
            previous: String::new(),
            hash: String::new(),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn entries_are_a_chain_from_which_the_oldest_go() {
        each_database(async |store| {
            let mut appended = Vec::new();
            for (unix_ms, namespace) in [
                (10, None),
                (30, Some("team")),
                (20, None),
                (40, Some("team")),
                (50, None),
            ] {
                appended.push(store.append_audit(entry(unix_ms, namespace)).await.unwrap());
            }
            let all = AuditQuery {
                limit: 9,
                ..AuditQuery::default()
            };
            let page = store.audit(&all).await.unwrap();
            assert_eq!((page.begins_after.number, &page.entries), (0, &appended));
            let mut before = page.begins_after.hash;
            for (entry, number) in appended.iter().zip(1..) {
                assert_eq!((entry.number, &entry.previous), (number, &before));
                assert_eq!(entry.hash, digest(entry));
                before.clone_from(&entry.hash);
            }
            let numbers = async |wanted: AuditQuery| {
                let page = store.audit(&wanted).await.unwrap();
                page.entries.iter().map(|entry| entry.number).collect::<Vec<_>>()
            };
            let namespace = Some("team".parse().unwrap());
            assert_eq!(
                numbers(AuditQuery {
                    namespace,
                    ..all.clone()
                })
                .await,
                [2, 4]
            );
            assert_eq!(
                numbers(AuditQuery {
                    after: 3,
                    ..all.clone()
                })
                .await,
                [4, 5]
            );
            assert_eq!(
                numbers(AuditQuery {
                    limit: 2,
                    ..all.clone()
                })
                .await,
                [1, 2]
            );
            let since = AuditQuery {
                since_unix_ms: 25,
                ..all.clone()
            };
            assert_eq!(numbers(since).await, [2, 4, 5]);
            // The third is older than the second, which stays.
            assert_eq!(store.trim_audit(9, 25).await.unwrap(), 1);
            assert_eq!(store.trim_audit(9, 25).await.unwrap(), 0);
            assert_eq!(numbers(all.clone()).await, [2, 3, 4, 5]);
            assert_eq!(store.trim_audit(2, 0).await.unwrap(), 2);
            let page = store.audit(&all).await.unwrap();
            assert_eq!(
                (page.begins_after.number, &page.begins_after.hash),
                (3, &appended[2].hash)
            );
            assert_eq!(page.entries, appended[3..]);
            assert_eq!(store.trim_audit(0, 0).await.unwrap(), 2);
            let next = store.append_audit(entry(60, None)).await.unwrap();
            assert_eq!(
                (next.number, &next.previous),
                (6, &appended[4].hash),
                "the chain goes on"
            );
            // A namespace that was made after the first of its entries.
            store.add_namespace(&"team".parse().unwrap(), 1).await.unwrap();
            for unix_ms in [999, 1_000] {
                store.append_audit(entry(unix_ms, Some("team"))).await.unwrap();
            }
            let namespace = Some("team".parse().unwrap());
            assert_eq!(
                numbers(AuditQuery {
                    namespace,
                    ..all.clone()
                })
                .await,
                [8]
            );
        })
        .await;
    }
}
