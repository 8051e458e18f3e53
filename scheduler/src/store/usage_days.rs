//! What namespaces have used, by day.

use rekindle_wire::api::{GbMs, UsageBy, UsageLine};
use rekindle_wire::internal::{UsageCounts, UsageReport};
use rekindle_wire::{FunctionId, FunctionName, Namespace, VersionNumber};
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};

use super::{Store, StoreError, failed, unreadable};
use crate::clock::date;

/// What adds to a row.
const ADD: &str = "INSERT INTO usage_days (day, namespace, function, version, ok, errors, warm, parked, restored, \
     booted, egress_bytes, stored_byte_s) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
     ON CONFLICT (day, namespace, function, version) DO UPDATE SET ok = usage_days.ok + excluded.ok, \
     errors = usage_days.errors + excluded.errors, warm = usage_days.warm + excluded.warm, \
     parked = usage_days.parked + excluded.parked, restored = usage_days.restored + excluded.restored, \
     booted = usage_days.booted + excluded.booted, egress_bytes = usage_days.egress_bytes + excluded.egress_bytes, \
     stored_byte_s = usage_days.stored_byte_s + excluded.stored_byte_s";
/// MiB-microseconds of a gigabyte-millisecond.
const GB_MS: f64 = 1024.0 * 1e3;
/// Byte-seconds of a GiB-hour.
const GB_H: f64 = 3_600.0 * 1_073_741_824.0;

#[derive(Debug, Clone)]
pub(crate) struct UsageQuery {
    pub(crate) namespace: Namespace,
    pub(crate) function: Option<FunctionName>,
    /// The first day, in days since the Unix epoch.
    pub(crate) from_day: u32,
    pub(crate) by: UsageBy,
    /// Number of lines that are read at most.
    pub(crate) limit: usize,
}

impl Store {
    /// Counts a report, unless it or a later one of its source was counted. Returns whether it was counted now. All or
    /// nothing.
    pub(crate) async fn count_usage(&self, report: &UsageReport, now_unix_s: i64) -> Result<bool, StoreError> {
        let doing = "count usage";
        let mut tx = self.begin(doing).await?;
        let noted = sqlx::query(
            "INSERT INTO usage_sources (source, sequence, unix_s) VALUES ($1, $2, $3) \
             ON CONFLICT (source) DO UPDATE SET sequence = excluded.sequence, unix_s = excluded.unix_s \
             WHERE usage_sources.sequence < excluded.sequence",
        )
        .bind(report.gateway.as_str())
        .bind(i64::try_from(report.sequence).map_err(unreadable("usage_sources.sequence"))?)
        .bind(now_unix_s)
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        if noted.rows_affected() == 0 {
            return Ok(false);
        }
        for entry in &report.entries {
            let function = (&entry.function, i64::from(entry.version.0));
            add(&mut tx, entry.day, function, &entry.counts, 0).await?;
        }
        tx.commit().await.map_err(failed(doing))?;
        Ok(true)
    }

    /// Counts what has been stored since storage was counted last. Whoever counts, no second counts twice.
    pub(crate) async fn count_stored(
        &self,
        stored: &[(FunctionId, u64)],
        day: u32,
        now_unix_s: i64,
    ) -> Result<(), StoreError> {
        let doing = "count what is stored";
        let mut tx = self.begin(doing).await?;
        let until: Option<i64> = sqlx::query_scalar("SELECT unix_s FROM usage_stored_until WHERE one = 1")
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(doing))?;
        let elapsed = until.map_or(0, |until| now_unix_s.saturating_sub(until));
        // Clocks may go back.
        if elapsed < 0 {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO usage_stored_until (one, unix_s) VALUES (1, $1) \
             ON CONFLICT (one) DO UPDATE SET unix_s = excluded.unix_s",
        )
        .bind(now_unix_s)
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        for (function, bytes) in stored.iter().filter(|(_, bytes)| *bytes > 0 && elapsed > 0) {
            let byte_s = i64::try_from(*bytes).unwrap_or(i64::MAX).saturating_mul(elapsed);
            add(&mut tx, day, (function, 0), &UsageCounts::default(), byte_s).await?;
        }
        tx.commit().await.map_err(failed(doing))
    }

    /// What was used, by day, function and version, as far as they are told apart.
    pub(crate) async fn usage(&self, wanted: &UsageQuery) -> Result<Vec<UsageLine>, StoreError> {
        let apart = [UsageBy::DAY, UsageBy::FUNCTION, UsageBy::VERSION].map(|part| wanted.by.has(part));
        let [day, function, version] = apart;
        let parts = [(day, "day"), (function, "function"), (version, "version")];
        let parts: Vec<_> = parts
            .iter()
            .filter(|(is_apart, _)| *is_apart)
            .map(|(_, part)| *part)
            .collect();
        let sums = [
            "ok",
            "errors",
            "warm",
            "parked",
            "restored",
            "booted",
            "egress_bytes",
            "stored_byte_s",
        ];
        let sums = sums
            .map(|sum| format!("CAST(COALESCE(SUM({sum}), 0) AS BIGINT) AS {sum}"))
            .join(", ");
        let apart = parts.join(", ");
        let (comma, group) = match parts.is_empty() {
            true => ("", String::new()),
            false => (", ", format!("GROUP BY {apart} ORDER BY {apart}")),
        };
        let sql = format!(
            "SELECT {apart}{comma}{sums} FROM usage_days WHERE namespace = $1 AND day >= $2 \
             AND ($3 = '' OR function = $3) {group} LIMIT $4"
        );
        let doing = "read usage";
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(wanted.namespace.as_str())
            .bind(i64::from(wanted.from_day))
            .bind(wanted.function.as_ref().map_or("", FunctionName::as_str))
            .bind(i64::try_from(wanted.limit).unwrap_or(i64::MAX))
            .fetch_all(&self.pool)
            .await
            .map_err(failed(doing))?;
        let read = |row: &sqlx::any::AnyRow| -> Result<UsageLine, StoreError> {
            let count = |column: &'static str| -> Result<u64, StoreError> {
                let value: i64 = row.try_get(column).map_err(failed(doing))?;
                u64::try_from(value).map_err(unreadable(column))
            };
            let mut line = UsageLine {
                ok: count("ok")?,
                errors: count("errors")?,
                gb_ms: GbMs {
                    warm: count("warm")? as f64 / GB_MS,
                    parked: count("parked")? as f64 / GB_MS,
                    restored: count("restored")? as f64 / GB_MS,
                    booted: count("booted")? as f64 / GB_MS,
                },
                egress_bytes: count("egress_bytes")?,
                stored_gb_h: count("stored_byte_s")? as f64 / GB_H,
                ..UsageLine::default()
            };
            if day {
                line.day = Some(date(count("day")?));
            }
            if function {
                let name: String = row.try_get("function").map_err(failed(doing))?;
                line.function = Some(name.parse().map_err(unreadable("usage_days.function"))?);
            }
            if version {
                let number = u32::try_from(count("version")?).map_err(unreadable("usage_days.version"))?;
                line.version = (number > 0).then_some(VersionNumber(number));
            }
            Ok(line)
        };
        rows.iter().map(read).collect()
    }

    /// Bytes of answers on a day, by namespace.
    pub(crate) async fn egress_on(&self, day: u32) -> Result<Vec<(String, u64)>, StoreError> {
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT namespace, CAST(SUM(egress_bytes) AS BIGINT) FROM usage_days WHERE day = $1 GROUP BY namespace",
        )
        .bind(i64::from(day))
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the day's egress"))?;
        rows.into_iter()
            .map(|(namespace, bytes)| Ok((namespace, u64::try_from(bytes).map_err(unreadable("egress_bytes"))?)))
            .collect()
    }

    /// Forgets usage of days before this one, and sources that have reported nothing since this time.
    pub(crate) async fn trim_usage(&self, before_day: u32, before_unix_s: i64) -> Result<(), StoreError> {
        let doing = "trim usage";
        sqlx::query("DELETE FROM usage_days WHERE day < $1")
            .bind(i64::from(before_day))
            .execute(&self.writes)
            .await
            .map_err(failed(doing))?;
        sqlx::query("DELETE FROM usage_sources WHERE unix_s < $1")
            .bind(before_unix_s)
            .execute(&self.writes)
            .await
            .map(drop)
            .map_err(failed(doing))
    }
}

async fn add(
    tx: &mut Transaction<'static, Any>,
    day: u32,
    (function, version): (&FunctionId, i64),
    counts: &UsageCounts,
    stored_byte_s: i64,
) -> Result<(), StoreError> {
    let number = |n: u64| i64::try_from(n).map_err(unreadable("usage"));
    sqlx::query(ADD)
        .bind(i64::from(day))
        .bind(function.namespace())
        .bind(function.name())
        .bind(version)
        .bind(number(counts.ok)?)
        .bind(number(counts.errors)?)
        .bind(number(counts.warm)?)
        .bind(number(counts.parked)?)
        .bind(number(counts.restored)?)
        .bind(number(counts.booted)?)
        .bind(number(counts.egress_bytes)?)
        .bind(stored_byte_s)
        .execute(&mut **tx)
        .await
        .map(drop)
        .map_err(failed("count usage"))
}

#[cfg(test)]
mod tests {
    use rekindle_wire::ids::GatewayId;
    use rekindle_wire::internal::UsageEntry;

    use super::super::tests::each_database;
    use super::*;

    const DAY: u32 = 20_783;

    fn report(gateway: &GatewayId, sequence: u64, entries: &[(u32, &str, u32, u64)]) -> UsageReport {
        let entries = entries.iter().map(|(day, function, version, ok)| UsageEntry {
            day: *day,
            function: function.parse().unwrap(),
            version: VersionNumber(*version),
            counts: UsageCounts {
                ok: *ok,
                errors: 1,
                warm: 512 * 1_000_000 * ok,
                egress_bytes: 10,
                ..UsageCounts::default()
            },
        });
        UsageReport {
            gateway: gateway.clone(),
            sequence,
            entries: entries.collect(),
        }
    }

    async fn read(store: &Store, namespace: &str, by: &str) -> Vec<UsageLine> {
        let wanted = UsageQuery {
            namespace: namespace.parse().unwrap(),
            function: None,
            from_day: DAY,
            by: by.parse().unwrap(),
            limit: 100,
        };
        store.usage(&wanted).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_report_counts_once_however_often_it_is_sent() {
        each_database(async |store| {
            let (one, two) = (GatewayId::generate(), GatewayId::generate());
            let first = report(
                &one,
                1,
                &[(DAY, "a", 1, 3), (DAY, "b.team", 1, 5), (DAY - 1, "a", 1, 9)],
            );
            assert!(store.count_usage(&first, 7).await.unwrap());
            assert!(!store.count_usage(&first, 8).await.unwrap(), "it was sent again");
            assert!(
                store
                    .count_usage(&report(&one, 2, &[(DAY, "a", 2, 1)]), 9)
                    .await
                    .unwrap()
            );
            assert!(!store.count_usage(&first, 9).await.unwrap(), "it came late");
            assert!(
                store
                    .count_usage(&report(&two, 1, &[(DAY, "a", 1, 4)]), 9)
                    .await
                    .unwrap()
            );
            let lines = read(&store, "default", "day,function,version").await;
            let told: Vec<_> = lines
                .iter()
                .map(|line| {
                    (
                        line.day.as_deref().unwrap(),
                        line.version.unwrap().0,
                        line.ok,
                        line.errors,
                    )
                })
                .collect();
            assert_eq!(told, [("2026-11-26", 1, 7, 2), ("2026-11-26", 2, 1, 1)]);
            assert!(
                (lines[0].gb_ms.warm - 7.0 * 500.0).abs() < 1e-6,
                "half a gigabyte for a second each"
            );
            let all = read(&store, "default", "function").await;
            assert_eq!((all.len(), all[0].ok, all[0].egress_bytes), (1, 8, 30));
            assert_eq!(read(&store, "team", "day").await[0].ok, 5);
            let mut egress = store.egress_on(DAY).await.unwrap();
            egress.sort();
            assert_eq!(egress, [("default".to_owned(), 30), ("team".to_owned(), 10)]);
            store.trim_usage(DAY + 1, 9).await.unwrap();
            assert!(read(&store, "default", "day").await.is_empty());
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_second_of_storage_counts_twice_whoever_counts() {
        each_database(async |store| {
            let stored = [("a".parse().unwrap(), 1 << 30), ("b".parse().unwrap(), 0)];
            for now in [1_000, 1_000, 4_600, 4_600, 4_000, 8_200] {
                store.count_stored(&stored, DAY, now).await.unwrap();
            }
            let lines = read(&store, "default", "function,version").await;
            assert_eq!((lines.len(), lines[0].version), (1, None));
            assert!((lines[0].stored_gb_h - 2.0).abs() < 1e-9, "{lines:?}");
        })
        .await;
    }
}
