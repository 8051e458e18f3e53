//! Versions whose snapshot is to be renewed, and the snapshots that were replaced.

use std::collections::BTreeMap;

use rekindle_wire::api::SnapshotSummary;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::renewal::{MadeWith, Renewal, RenewalReason};
use rekindle_wire::{FunctionId, SnapshotId, VersionNumber};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Store, StoreError, failed, json, parsed, unreadable};

/// Number of failed attempts after which none follows automatically.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

/// The columns of a version's renewal, in addition to those of the version `v`.
pub(super) const COLUMNS: &str = "r.reason AS renewal_reason, r.why AS renewal_why, r.since_unix_s AS renewal_since, \
     r.due_unix_s AS renewal_due, r.attempts AS renewal_attempts, r.error AS renewal_error";
/// The join that provides them.
pub(super) const JOIN: &str = "LEFT JOIN renewals r ON r.function_id = v.function_id AND r.number = v.number";

#[derive(Debug)]
pub(crate) struct DueRenewal {
    pub(crate) spec: VersionSpec,
    pub(crate) reason: RenewalReason,
    pub(crate) attempts: u32,
}

/// Reads the columns in [`COLUMNS`].
pub(super) fn from_row(row: &AnyRow) -> Result<Option<Renewal>, StoreError> {
    let text = |column: &'static str| row.try_get::<Option<String>, _>(column).map_err(unreadable(column));
    let number = |column: &'static str| row.try_get::<i64, _>(column).map_err(unreadable(column));
    let Some(reason) = text("renewal_reason")? else {
        return Ok(None);
    };
    let attempts = u32::try_from(number("renewal_attempts")?).map_err(unreadable("renewals.attempts"))?;
    Ok(Some(Renewal {
        reason: reason.parse().map_err(unreadable("renewals.reason"))?,
        why: text("renewal_why")?.unwrap_or_default(),
        since_unix_s: number("renewal_since")?,
        due_unix_s: number("renewal_due")?,
        attempts,
        given_up: attempts >= ATTEMPTS_MAX,
        error: text("renewal_error")?,
    }))
}

impl Store {
    /// The snapshots of the live versions, with the tools that made them.
    pub(crate) async fn serving_snapshots(
        &self,
    ) -> Result<Vec<(FunctionId, VersionNumber, Option<MadeWith>)>, StoreError> {
        let rows: Vec<(String, String, i64, String)> = sqlx::query_as(
            "SELECT f.namespace, f.name, v.number, v.snapshot FROM versions v JOIN functions f ON f.id = v.function_id \
             WHERE v.snapshot IS NOT NULL AND v.number IN \
             (SELECT a.number FROM aliases a WHERE a.function_id = v.function_id AND a.name = 'live')",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read what snapshots were made with"))?;
        let serving = rows.into_iter().map(|(namespace, name, number, snapshot)| {
            let (function, version) = super::collection::named(&namespace, &name, number)?;
            let snapshot: SnapshotSummary = parsed("versions.snapshot", &snapshot)?;
            Ok((function, version, snapshot.made_with))
        });
        serving.collect()
    }

    /// Queues a renewal of a version's snapshot, due at `due`. A renewal already queued stays as it is, unless `anew`
    /// lets this request restart it. Returns whether anything has changed.
    pub(crate) async fn want_renewal(
        &self,
        (function, version): (&FunctionId, VersionNumber),
        (reason, why): (RenewalReason, &str),
        (now_unix_s, due_unix_s): (i64, i64),
        anew: AttemptReset,
    ) -> Result<bool, StoreError> {
        let conflict = match anew {
            AttemptReset::No => "DO NOTHING",
            AttemptReset::ForAnotherCause => {
                "DO UPDATE SET reason = excluded.reason, why = excluded.why, due_unix_s = excluded.due_unix_s, \
                 attempts = 0, \
                 error = NULL WHERE renewals.why <> excluded.why"
            }
            AttemptReset::Always => {
                "DO UPDATE SET reason = excluded.reason, why = excluded.why, due_unix_s = excluded.due_unix_s, \
                 attempts = 0, \
                 error = NULL"
            }
        };
        let done = sqlx::query(sqlx::AssertSqlSafe(format!(
            "INSERT INTO renewals (function_id, number, reason, why, since_unix_s, due_unix_s, attempts) \
             SELECT v.function_id, v.number, $1, $2, $3, $4, 0 FROM versions v \
             WHERE v.number = $5 AND v.function_id = (SELECT id FROM functions WHERE namespace = $6 AND name = $7) \
             ON CONFLICT (function_id, number) {conflict}"
        )))
        .bind(reason.as_str())
        .bind(why)
        .bind(now_unix_s)
        .bind(due_unix_s)
        .bind(i64::from(version.0))
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("note a snapshot that is to be made anew"))?;
        Ok(done.rows_affected() > 0)
    }

    /// The due renewal that has waited longest.
    pub(crate) async fn due_renewal(&self, now_unix_s: i64) -> Result<Option<DueRenewal>, StoreError> {
        let row: Option<(String, String, i64)> = sqlx::query_as(
            "SELECT v.spec, r.reason, r.attempts FROM renewals r \
             JOIN versions v ON v.function_id = r.function_id AND v.number = r.number \
             WHERE r.due_unix_s <= $1 AND r.attempts < $2 AND v.state = 'live' AND v.spec IS NOT NULL \
             ORDER BY r.due_unix_s, r.since_unix_s, r.function_id LIMIT 1",
        )
        .bind(now_unix_s)
        .bind(i64::from(ATTEMPTS_MAX))
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("look for a snapshot that is to be made anew"))?;
        let Some((spec, reason, attempts)) = row else {
            return Ok(None);
        };
        Ok(Some(DueRenewal {
            spec: parsed("versions.spec", &spec)?,
            reason: reason.parse().map_err(unreadable("renewals.reason"))?,
            attempts: u32::try_from(attempts).map_err(unreadable("renewals.attempts"))?,
        }))
    }

    /// Drops the renewal of a version that no longer serves.
    pub(crate) async fn drop_renewal(&self, function: &FunctionId, version: VersionNumber) -> Result<(), StoreError> {
        sqlx::query(
            "DELETE FROM renewals WHERE number = $1 AND function_id = (SELECT id FROM functions WHERE namespace = $2 \
            AND name = $3)",
        )
        .bind(i64::from(version.0))
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("drop a snapshot that was to be made anew"))?;
        Ok(())
    }

    /// Records a failed attempt. The next one is due at `due`, unless there have been too many.
    pub(crate) async fn renewal_failed(
        &self,
        (function, version): (&FunctionId, VersionNumber),
        attempts: u32,
        error: &str,
        due_unix_s: i64,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE renewals SET attempts = $1, error = $2, due_unix_s = $3 \
             WHERE number = $4 AND function_id = (SELECT id FROM functions WHERE namespace = $5 AND name = $6)",
        )
        .bind(i64::from(attempts))
        .bind(error)
        .bind(due_unix_s)
        .bind(i64::from(version.0))
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("note why a snapshot could not be made anew"))?;
        Ok(())
    }

    /// Gives the version this `spec` and its snapshot in one transaction; `old` is kept for its users. Returns `false`
    /// if the version is gone.
    pub(crate) async fn renewed(
        &self,
        spec: &VersionSpec,
        snapshot: &SnapshotSummary,
        old: Option<&SnapshotId>,
        now_unix_s: i64,
    ) -> Result<bool, StoreError> {
        let doing = "exchange a snapshot";
        let mut tx = self.begin(doing).await?;
        let number = i64::from(spec.version.0);
        let function: Option<i64> = sqlx::query_scalar("SELECT id FROM functions WHERE namespace = $1 AND name = $2")
            .bind(spec.function.namespace())
            .bind(spec.function.name())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(doing))?;
        let Some(function) = function else {
            return Ok(false);
        };
        let exchanged = sqlx::query(
            "UPDATE versions SET spec = $1, snapshot = $2, snapshot_error = NULL \
             WHERE number = $3 AND state = 'live' AND function_id = $4",
        )
        .bind(json(spec)?)
        .bind(json(snapshot)?)
        .bind(number)
        .bind(function)
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        if exchanged.rows_affected() == 0 {
            return Ok(false);
        }
        if let Some(old) = old {
            sqlx::query(
                "INSERT INTO replaced_snapshots (snapshot, function_id, since_unix_s) VALUES ($1, $2, $3) \
                 ON CONFLICT (snapshot) DO NOTHING",
            )
            .bind(old.as_str())
            .bind(function)
            .bind(now_unix_s)
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        }
        sqlx::query("DELETE FROM renewals WHERE function_id = $1 AND number = $2")
            .bind(function)
            .bind(number)
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(true)
    }

    /// Number of waiting renewals, by reason and by whether they were given up.
    pub(crate) async fn renewals_waiting(&self) -> Result<BTreeMap<(RenewalReason, bool), u64>, StoreError> {
        let rows: Vec<(String, i64)> = sqlx::query_as("SELECT reason, attempts FROM renewals")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("count the snapshots that are to be made anew"))?;
        let mut waiting = BTreeMap::new();
        for (reason, attempts) in rows {
            let reason = reason.parse().map_err(unreadable("renewals.reason"))?;
            *waiting
                .entry((reason, attempts >= i64::from(ATTEMPTS_MAX)))
                .or_default() += 1;
        }
        Ok(waiting)
    }

    /// Versions whose snapshot is to be renewed: one that is being published may not be recorded yet.
    pub(crate) async fn renewing(&self) -> Result<Vec<(FunctionId, VersionNumber)>, StoreError> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(
            "SELECT f.namespace, f.name, r.number FROM renewals r JOIN functions f ON f.id = r.function_id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read whose snapshots are to be made anew"))?;
        rows.into_iter()
            .map(|(namespace, name, number)| super::collection::named(&namespace, &name, number))
            .collect()
    }

    /// Replaced snapshots, each with when it was replaced.
    pub(crate) async fn replaced(&self) -> Result<Vec<(SnapshotId, i64)>, StoreError> {
        let rows: Vec<(String, i64)> = sqlx::query_as("SELECT snapshot, since_unix_s FROM replaced_snapshots")
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read which snapshots were replaced"))?;
        rows.into_iter()
            .map(|(id, since)| Ok((id.parse().map_err(unreadable("replaced_snapshots.snapshot"))?, since)))
            .collect()
    }

    /// Forgets a replaced snapshot that is no longer needed.
    pub(crate) async fn release_replaced(&self, snapshot: &SnapshotId) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM replaced_snapshots WHERE snapshot = $1")
            .bind(snapshot.as_str())
            .execute(&self.writes)
            .await
            .map_err(failed("let go of a replaced snapshot"))?;
        Ok(())
    }
}

/// Whether a renewal that is already queued starts counting its attempts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptReset {
    No,
    /// If it is wanted for another cause than before.
    ForAnotherCause,
    Always,
}

#[cfg(test)]
mod tests {
    use rekindle_wire::api::PhaseTime;

    use super::super::tests::each_database;
    use super::*;
    use crate::fixture::{parsed, spec};

    fn snapshot(id: &str, form: Option<u32>) -> SnapshotSummary {
        SnapshotSummary {
            id: id.parse().unwrap(),
            memory_bytes: 1,
            zero_bytes: 0,
            stored_bytes: 1,
            shared_bytes: 0,
            frozen_ms: 1.0,
            made_with: form.map(|form| MadeWith {
                filter: "aa".to_owned(),
                form,
            }),
            randomness: None,
            rehearsal: None,
            refused_warmups: Vec::new(),
        }
    }

    async fn live(store: &Store, name: &str, id: &str, form: Option<u32>) -> VersionSpec {
        let added = store
            .add_version(&name.parse().unwrap(), &parsed(name), "sources/a", 7)
            .await
            .unwrap();
        let mut spec = spec(name, added.info.version.0, 10, 1, 1);
        spec.snapshot = Some(id.parse().unwrap());
        let no_phases: [PhaseTime; 0] = [];
        let snapshot = snapshot(id, form);
        store
            .set_live(&spec, Some(&snapshot), None, &no_phases, true)
            .await
            .unwrap();
        spec
    }

    const FILTER: (RenewalReason, &str) = (RenewalReason::Filter, "a");

    #[tokio::test(flavor = "multi_thread")]
    async fn what_waits_is_due_in_its_turn_until_it_has_failed_too_often() {
        each_database(async |store| {
            let one = live(&store, "one", "s-1", None).await;
            let two = live(&store, "two", "s-2", Some(3)).await;
            let of = |spec: &VersionSpec| (spec.function.clone(), spec.version);
            let (first, second) = (of(&one), of(&two));
            let (first, second) = ((&first.0, first.1), (&second.0, second.1));
            let mut made = store.serving_snapshots().await.unwrap();
            made.sort_by(|a, b| a.0.cmp(&b.0));
            assert_eq!(made[0].2, None);
            assert_eq!(made[1].2, snapshot("s-2", Some(3)).made_with);

            assert!(
                store
                    .want_renewal(first, FILTER, (10, 10), AttemptReset::No)
                    .await
                    .unwrap()
            );
            assert!(
                store
                    .want_renewal(second, FILTER, (11, 11), AttemptReset::No)
                    .await
                    .unwrap()
            );
            assert!(
                !store
                    .want_renewal(first, FILTER, (12, 12), AttemptReset::ForAnotherCause)
                    .await
                    .unwrap()
            );
            assert!(store.due_renewal(9).await.unwrap().is_none());
            let due = store.due_renewal(20).await.unwrap().unwrap();
            assert_eq!((due.spec, due.attempts), (one.clone(), 0));
            store.renewal_failed(first, ATTEMPTS_MAX, "why", 15).await.unwrap();
            assert_eq!(store.due_renewal(20).await.unwrap().unwrap().spec, two);
            let told = store
                .version(&one.function, one.version)
                .await
                .unwrap()
                .unwrap()
                .renewal
                .unwrap();
            assert_eq!(
                (told.given_up, told.error.as_deref(), told.since_unix_s),
                (true, Some("why"), 10)
            );
            let waiting = store.renewals_waiting().await.unwrap();
            assert_eq!(
                waiting.into_iter().map(|((_, up), n)| (up, n)).collect::<Vec<_>>(),
                [(false, 1), (true, 1)]
            );

            // For another cause the count starts again.
            let other = (RenewalReason::Form, "b");
            assert!(
                !store
                    .want_renewal(first, other, (13, 13), AttemptReset::No)
                    .await
                    .unwrap()
            );
            assert!(
                store
                    .want_renewal(first, other, (13, 5), AttemptReset::ForAnotherCause)
                    .await
                    .unwrap()
            );
            let due = store.due_renewal(20).await.unwrap().unwrap();
            assert_eq!((due.spec, due.reason, due.attempts), (one, RenewalReason::Form, 0));
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_is_exchanged_at_once_and_the_old_one_is_kept_until_it_is_let_go_of() {
        each_database(async |store| {
            let old = live(&store, "hello", "s-1", None).await;
            let named = (&old.function, old.version);
            store
                .want_renewal(named, FILTER, (10, 10), AttemptReset::No)
                .await
                .unwrap();
            assert_eq!(store.renewing().await.unwrap(), [(old.function.clone(), old.version)]);
            let mut new = old.clone();
            new.snapshot = Some("s-2".parse().unwrap());
            let made = snapshot("s-2", Some(1));
            assert!(store.renewed(&new, &made, old.snapshot.as_ref(), 20).await.unwrap());
            assert_eq!(store.live_specs().await.unwrap(), std::slice::from_ref(&new));
            let told = store.version(&old.function, old.version).await.unwrap().unwrap();
            assert_eq!((told.snapshot, told.renewal), (Some(made.clone()), None));
            assert!(store.renewing().await.unwrap().is_empty());
            let kept = store.replaced().await.unwrap();
            assert_eq!(kept, [(old.snapshot.clone().unwrap(), 20)]);
            store.release_replaced(&kept[0].0).await.unwrap();
            assert!(store.replaced().await.unwrap().is_empty());

            // All of it goes with its function.
            store
                .want_renewal(named, FILTER, (10, 10), AttemptReset::No)
                .await
                .unwrap();
            let mut newer = new.clone();
            newer.snapshot = Some("s-3".parse().unwrap());
            assert!(store.renewed(&newer, &made, new.snapshot.as_ref(), 30).await.unwrap());
            store
                .want_renewal(named, FILTER, (10, 10), AttemptReset::No)
                .await
                .unwrap();
            let mut left = store
                .delete_function(&old.function, 7)
                .await
                .unwrap()
                .unwrap()
                .snapshots;
            left.sort();
            assert_eq!(left, ["s-2", "s-3"].map(|id| id.parse().unwrap()));
            assert!(!store.renewed(&newer, &made, None, 40).await.unwrap());
            assert!(store.renewing().await.unwrap().is_empty());
        })
        .await;
    }
}
