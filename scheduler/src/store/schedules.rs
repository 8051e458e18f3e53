//! Schedules: how far each has got, and which are paused.

use rekindle_wire::{FunctionId, ScheduleName};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Store, StoreError, failed, function_id, json, parsed, unreadable};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredSchedule<P> {
    pub(crate) function: FunctionId,
    pub(crate) name: ScheduleName,
    pub(crate) paused: bool,
    pub(crate) progress: P,
}

impl Store {
    pub(crate) async fn schedules<P: DeserializeOwned>(&self) -> Result<Vec<StoredSchedule<P>>, StoreError> {
        let rows: Vec<(String, String, String, i64, String)> = sqlx::query_as(
            "SELECT f.namespace, f.name, s.name, s.is_paused, s.progress FROM schedules s \
             JOIN functions f ON f.id = s.function_id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the schedules"))?;
        let read = rows
            .into_iter()
            .map(|(namespace, function, name, is_paused, progress)| {
                Ok(StoredSchedule {
                    function: function_id(&namespace, &function)?,
                    name: name.parse().map_err(unreadable("schedules.name"))?,
                    paused: is_paused != 0,
                    progress: parsed("schedules.progress", &progress)?,
                })
            });
        read.collect()
    }

    /// Stores how far a schedule has got, unless its function is gone.
    pub(crate) async fn keep_schedule<P: Serialize>(&self, schedule: &StoredSchedule<P>) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO schedules (function_id, name, is_paused, progress) \
             SELECT id, $1, $2, $3 FROM functions WHERE namespace = $4 AND name = $5 \
             ON CONFLICT (function_id, name) DO UPDATE \
             SET is_paused = excluded.is_paused, progress = excluded.progress",
        )
        .bind(schedule.name.as_str())
        .bind(i64::from(schedule.paused))
        .bind(json(&schedule.progress)?)
        .bind(schedule.function.namespace())
        .bind(schedule.function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("keep a schedule"))?;
        Ok(())
    }

    /// Forgets a schedule.
    pub(crate) async fn remove_schedule(&self, function: &FunctionId, name: &ScheduleName) -> Result<(), StoreError> {
        sqlx::query(
            "DELETE FROM schedules WHERE name = $1 \
             AND function_id = (SELECT id FROM functions WHERE namespace = $2 AND name = $3)",
        )
        .bind(name.as_str())
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("forget a schedule"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{add_live, each_database};
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_schedule_is_kept_until_it_or_its_function_goes() {
        each_database(async |store| {
            add_live(&store, "hello", None).await;
            let kept = |function: &str, paused, progress: i64| StoredSchedule {
                function: function.parse().unwrap(),
                name: "nightly".parse().unwrap(),
                paused,
                progress,
            };
            store.keep_schedule(&kept("hello", false, 1)).await.unwrap();
            store.keep_schedule(&kept("hello", true, 2)).await.unwrap();
            store.keep_schedule(&kept("gone", true, 3)).await.unwrap();
            store.keep_schedule(&kept("hello.team", true, 3)).await.unwrap();
            assert_eq!(store.schedules().await.unwrap(), [kept("hello", true, 2)]);
            let first = kept("hello", true, 2);
            store.remove_schedule(&first.function, &first.name).await.unwrap();
            assert_eq!(store.schedules::<i64>().await.unwrap(), []);
            store.keep_schedule(&first).await.unwrap();
            store.delete_function(&first.function, 7).await.unwrap();
            assert_eq!(store.schedules::<i64>().await.unwrap(), []);
        })
        .await;
    }
}
