//! Versions: added when a deploy is accepted, changed while prepared, and never changed once live or failed.

use std::sync::LazyLock;

use rekindle_wire::api::{Alias, Canary, PhaseTime, Reused, SnapshotSummary, VersionInfo, VersionState};
use rekindle_wire::function_config::FunctionConfig;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Namespace, SnapshotId, VersionNumber};
use sqlx::any::AnyRow;
use sqlx::{Any, Row as _, Transaction};

use super::{Store, StoreError, failed, function_id, json, parsed, renewals, unreadable, version_state};

/// User ids on the workers start after this.
const FIRST_UID: i64 = 100_000;

/// A version that was just accepted.
#[derive(Debug, Clone)]
pub(crate) struct NewVersion {
    pub(crate) info: VersionInfo,
    /// User id of the function's processes.
    pub(crate) uid: u32,
}

/// The folder that a version is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// Its key in the object store.
    pub(crate) key: &'a str,
    /// Digest of its files without fn.toml.
    pub(crate) code: Option<&'a str>,
    pub(crate) bytes: Option<u64>,
    /// The version that has been made of these files already.
    pub(crate) reused: Option<Reused>,
}

impl<'a, T: AsRef<str> + ?Sized> From<&'a T> for Source<'a> {
    fn from(key: &'a T) -> Self {
        Self {
            key: key.as_ref(),
            code: None,
            bytes: None,
            reused: None,
        }
    }
}

/// What a version serves once it can.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rollout<'a> {
    /// Nothing but its own URL.
    Nothing,
    /// The plain URL, alone.
    All,
    /// A share of the plain URL.
    Share(&'a Canary),
}

impl From<bool> for Rollout<'_> {
    fn from(serves: bool) -> Self {
        if serves { Self::All } else { Self::Nothing }
    }
}

/// The query for rows of versions, up to its condition.
static COLUMNS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT f.namespace, f.name, v.number, v.state, v.created_unix_s, v.manifest, v.error, v.snapshot, \
        v.snapshot_error, \
         v.phases, v.reused, {} \
         FROM versions v JOIN functions f ON f.id = v.function_id {}",
        renewals::COLUMNS,
        renewals::JOIN
    )
});

impl Store {
    /// Adds the next version of a function, and the function if it is new.
    pub(crate) async fn add_version(
        &self,
        function: &FunctionId,
        config: &FunctionConfig,
        source: impl Into<Source<'_>>,
        now_unix_s: i64,
    ) -> Result<NewVersion, StoreError> {
        let doing = "add a version";
        let source = source.into();
        let mut tx = self.begin(doing).await?;
        sqlx::query(
            "INSERT INTO functions (namespace, name, created_unix_s) VALUES ($1, $2, $3) \
             ON CONFLICT (namespace, name) DO NOTHING",
        )
        .bind(function.namespace())
        .bind(function.name())
        .bind(now_unix_s)
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        let id: i64 = sqlx::query_scalar("SELECT id FROM functions WHERE namespace = $1 AND name = $2")
            .bind(function.namespace())
            .bind(function.name())
            .fetch_one(&mut *tx)
            .await
            .map_err(failed(doing))?;
        let under_way: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM versions WHERE function_id = $1 AND state NOT IN ('live', 'failed')",
        )
        .bind(id)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed(doing))?;
        if under_way > 0 {
            return Err(StoreError::Busy(function.clone()));
        }
        let number: i64 = sqlx::query_scalar(
            "INSERT INTO version_numbers (namespace, name, last) VALUES ($1, $2, 1) \
             ON CONFLICT (namespace, name) DO UPDATE SET last = version_numbers.last + 1 RETURNING last",
        )
        .bind(function.namespace())
        .bind(function.name())
        .fetch_one(&mut *tx)
        .await
        .map_err(failed(doing))?;
        sqlx::query(
            "INSERT INTO versions (function_id, number, state, created_unix_s, manifest, source_key, code, reused, \
             source_bytes, phases) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, '[]')",
        )
        .bind(id)
        .bind(number)
        .bind(VersionState::Queued.as_str())
        .bind(now_unix_s)
        .bind(json(config)?)
        .bind(source.key)
        .bind(source.code)
        .bind(source.reused.as_ref().map(json).transpose()?)
        .bind(source.bytes.and_then(|bytes| i64::try_from(bytes).ok()))
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(NewVersion {
            info: VersionInfo {
                function: function.clone(),
                version: VersionNumber(u32::try_from(number).map_err(unreadable("versions.number"))?),
                state: VersionState::Queued,
                created_unix_s: now_unix_s,
                config: config.clone(),
                error: None,
                snapshot: None,
                snapshot_error: None,
                reused: source.reused,
                phases: Vec::new(),
                renewal: None,
            },
            uid: u32::try_from(FIRST_UID + id).map_err(unreadable("functions.id"))?,
        })
    }

    /// Records a version's progress. A state that is final stays: a preparation that was cut off may still write.
    pub(crate) async fn set_state(
        &self,
        function: &FunctionId,
        version: VersionNumber,
        state: VersionState,
        phases: &[PhaseTime],
    ) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE versions SET state = $1, phases = $2 \
             WHERE number = $3 AND state NOT IN ('live', 'failed') \
             AND function_id = (SELECT id FROM functions WHERE namespace = $4 AND name = $5)",
        )
        .bind(state.as_str())
        .bind(json(phases)?)
        .bind(i64::from(version.0))
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("note a version's state"))?;
        Ok(())
    }

    /// Records that the version can serve, and has the alias `live` name it if it is to serve the plain URL. Returns
    /// `false` if it cannot: it has failed, or the version whose files it uses was removed meanwhile, so that they may
    /// be gone.
    pub(crate) async fn set_live(
        &self,
        spec: &VersionSpec,
        snapshot: Option<&SnapshotSummary>,
        snapshot_error: Option<&str>,
        phases: &[PhaseTime],
        serves: impl Into<Rollout<'_>>,
    ) -> Result<bool, StoreError> {
        let doing = "make a version live";
        let serves = serves.into();
        let mut tx = self.begin(doing).await?;
        let reused = Self::reused_by(&mut tx, &spec.function, spec.version, doing).await?;
        let ready = sqlx::query(
            "UPDATE versions SET state = 'live', spec = $1, snapshot = $2, snapshot_error = $3, phases = $4 \
             WHERE number = $5 AND state <> 'failed' \
             AND function_id = (SELECT id FROM functions WHERE namespace = $6 AND name = $7) \
             AND ($8 = 0 OR EXISTS (SELECT 1 FROM versions b WHERE b.function_id = versions.function_id \
             AND b.number = $8 AND b.state = 'live'))",
        )
        .bind(json(spec)?)
        .bind(snapshot.map(json).transpose()?)
        .bind(snapshot_error)
        .bind(json(phases)?)
        .bind(i64::from(spec.version.0))
        .bind(spec.function.namespace())
        .bind(spec.function.name())
        .bind(reused)
        .execute(&mut *tx)
        .await
        .map_err(failed(doing))?;
        let is_ready = ready.rows_affected() > 0;
        if is_ready && let Some(id) = Self::id_of(&mut tx, &spec.function, doing).await? {
            match serves {
                Rollout::Nothing => {}
                Rollout::All => {
                    let live = Alias::of(AliasName::live(), spec.version);
                    Self::point(&mut tx, id, &live, doing).await?;
                }
                Rollout::Share(canary) => Self::set_canary(&mut tx, id, canary, doing).await?,
            }
        }
        tx.commit().await.map_err(failed(doing))?;
        Ok(is_ready)
    }

    /// Number of the version whose files this one uses, 0 for none.
    async fn reused_by(
        tx: &mut Transaction<'static, Any>,
        function: &FunctionId,
        version: VersionNumber,
        doing: &'static str,
    ) -> Result<i64, StoreError> {
        let reused: Option<Option<String>> = sqlx::query_scalar(
            "SELECT reused FROM versions WHERE number = $1 \
             AND function_id = (SELECT id FROM functions WHERE namespace = $2 AND name = $3)",
        )
        .bind(i64::from(version.0))
        .bind(function.namespace())
        .bind(function.name())
        .fetch_optional(&mut **tx)
        .await
        .map_err(failed(doing))?;
        let reused: Option<Reused> = reused.flatten().map(|r| parsed("versions.reused", &r)).transpose()?;
        Ok(reused.map_or(0, |reused| i64::from(reused.version.0)))
    }

    /// Stores this `spec`, which includes the digest of the version's snapshot, unless the version has lost or renewed
    /// the snapshot meanwhile.
    pub(crate) async fn keep_digest(&self, spec: &VersionSpec) -> Result<(), StoreError> {
        let Some(snapshot) = &spec.snapshot else { return Ok(()) };
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "UPDATE versions SET spec = $1 WHERE number = $2 AND state = 'live' AND snapshot_error IS NULL \
             AND function_id = (SELECT id FROM functions WHERE namespace = $3 AND name = $4) AND {} = $5",
            self.dialect.json_field("spec", &["snapshot"])
        )))
        .bind(json(spec)?)
        .bind(i64::from(spec.version.0))
        .bind(spec.function.namespace())
        .bind(spec.function.name())
        .bind(snapshot.as_str())
        .execute(&self.writes)
        .await
        .map_err(failed("keep the digest of a snapshot"))?;
        Ok(())
    }

    /// Records that the version, now with this `spec`, has lost `snapshot`: it continues to serve, booted. If it has
    /// renewed it meanwhile, nothing changes.
    pub(crate) async fn lose_snapshot(
        &self,
        spec: &VersionSpec,
        snapshot: &SnapshotId,
        why: &str,
    ) -> Result<(), StoreError> {
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "UPDATE versions SET spec = $1, snapshot = NULL, snapshot_error = $2 \
             WHERE number = $3 AND state = 'live' \
             AND function_id = (SELECT id FROM functions WHERE namespace = $4 AND name = $5) AND {} = $6",
            self.dialect.json_field("spec", &["snapshot"])
        )))
        .bind(json(spec)?)
        .bind(why)
        .bind(i64::from(spec.version.0))
        .bind(spec.function.namespace())
        .bind(spec.function.name())
        .bind(snapshot.as_str())
        .execute(&self.writes)
        .await
        .map_err(failed("note a damaged snapshot"))?;
        Ok(())
    }

    /// Stores why a version failed. Returns whether there is such a version that is not live.
    pub(crate) async fn set_failed(
        &self,
        function: &FunctionId,
        version: VersionNumber,
        error: &ApiError,
        phases: &[PhaseTime],
    ) -> Result<bool, StoreError> {
        let noted = sqlx::query(
            "UPDATE versions SET state = 'failed', error = $1, phases = $2 \
             WHERE number = $3 AND state <> 'live' \
             AND function_id = (SELECT id FROM functions WHERE namespace = $4 AND name = $5)",
        )
        .bind(json(error)?)
        .bind(json(phases)?)
        .bind(i64::from(version.0))
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("note why a version failed"))?;
        Ok(noted.rows_affected() > 0)
    }

    /// Marks versions as failed whose preparation was cut short by a restart of the scheduler. Returns how many.
    pub(crate) async fn fail_unfinished(&self) -> Result<u64, StoreError> {
        let error = ApiError::new(
            ErrorCode::Unavailable,
            "the platform restarted while it was being prepared; deploy again",
        );
        let done =
            sqlx::query("UPDATE versions SET state = 'failed', error = $1 WHERE state NOT IN ('live', 'failed')")
                .bind(json(&error)?)
                .execute(&self.writes)
                .await
                .map_err(failed("mark unfinished versions"))?;
        Ok(done.rows_affected())
    }

    /// One version; `None` if there is none of that number.
    pub(crate) async fn version(
        &self,
        function: &FunctionId,
        version: VersionNumber,
    ) -> Result<Option<VersionInfo>, StoreError> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "{} WHERE f.namespace = $1 AND f.name = $2 AND v.number = $3",
            *COLUMNS
        )))
        .bind(function.namespace())
        .bind(function.name())
        .bind(i64::from(version.0))
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read a version"))?;
        row.map(|r| from_row(&r)).transpose()
    }

    /// The newest versions of a function, newest first; empty if there is no such function.
    pub(crate) async fn versions(&self, function: &FunctionId, limit: u32) -> Result<Vec<VersionInfo>, StoreError> {
        let sql = format!(
            "{} WHERE f.namespace = $1 AND f.name = $2 ORDER BY v.number DESC LIMIT $3",
            *COLUMNS
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(function.namespace())
            .bind(function.name())
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read versions"))?;
        rows.iter().map(from_row).collect()
    }

    /// The newest version of a function, if it came from the folder at `source_key` and is complete: live, and not
    /// without the snapshot it asked for.
    pub(crate) async fn unchanged(
        &self,
        function: &FunctionId,
        source_key: &str,
    ) -> Result<Option<VersionInfo>, StoreError> {
        let sql = format!(
            "{} WHERE f.namespace = $1 AND f.name = $2 AND v.source_key = $3 AND v.state = 'live' AND \
            v.snapshot_error IS NULL \
             AND v.number = (SELECT MAX(n.number) FROM versions n WHERE n.function_id = v.function_id)",
            *COLUMNS
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(function.namespace())
            .bind(function.name())
            .bind(source_key)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("look for an unchanged version"))?;
        row.map(|r| from_row(&r)).transpose()
    }

    /// The version, if it can serve and was made of files with this digest.
    pub(crate) async fn of_code(
        &self,
        function: &FunctionId,
        version: VersionNumber,
        code: &str,
    ) -> Result<Option<VersionInfo>, StoreError> {
        let sql = format!(
            "{} WHERE f.namespace = $1 AND f.name = $2 AND v.number = $3 AND v.code = $4 AND v.state = 'live'",
            *COLUMNS
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(function.namespace())
            .bind(function.name())
            .bind(i64::from(version.0))
            .bind(code)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("look for a version of the same files"))?;
        row.map(|r| from_row(&r)).transpose()
    }

    /// Key of the folder that a version was made of.
    pub(crate) async fn source_key(
        &self,
        function: &FunctionId,
        version: VersionNumber,
    ) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar(
            "SELECT source_key FROM versions WHERE number = $1 \
             AND function_id = (SELECT id FROM functions WHERE namespace = $2 AND name = $3)",
        )
        .bind(i64::from(version.0))
        .bind(function.namespace())
        .bind(function.name())
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read where a version's folder is"))
    }

    /// The newest version of every function in a namespace, by name.
    pub(crate) async fn newest_versions(&self, namespace: &Namespace) -> Result<Vec<VersionInfo>, StoreError> {
        let sql = format!(
            "{} WHERE f.namespace = $1 \
             AND v.number = (SELECT MAX(n.number) FROM versions n WHERE n.function_id = v.function_id) \
             ORDER BY f.name",
            *COLUMNS
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(namespace.as_str())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("read the newest versions"))?;
        rows.iter().map(from_row).collect()
    }

    /// Every version that can serve, or could once.
    pub(crate) async fn live_specs(&self) -> Result<Vec<VersionSpec>, StoreError> {
        let rows: Vec<String> =
            sqlx::query_scalar("SELECT spec FROM versions WHERE state = 'live' AND spec IS NOT NULL")
                .fetch_all(&self.pool)
                .await
                .map_err(failed("read the live versions"))?;
        rows.iter()
            .map(|spec| serde_json::from_str(spec).map_err(unreadable("versions.spec")))
            .collect()
    }
}

fn from_row(row: &AnyRow) -> Result<VersionInfo, StoreError> {
    let text = |column: &'static str| row.try_get::<String, _>(column).map_err(unreadable(column));
    let maybe = |column: &'static str| row.try_get::<Option<String>, _>(column).map_err(unreadable(column));
    let number = |column: &'static str| row.try_get::<i64, _>(column).map_err(unreadable(column));
    Ok(VersionInfo {
        function: function_id(&text("namespace")?, &text("name")?)?,
        version: VersionNumber(u32::try_from(number("number")?).map_err(unreadable("versions.number"))?),
        state: version_state(&text("state")?)?,
        created_unix_s: number("created_unix_s")?,
        config: parsed("versions.manifest", &text("manifest")?)?,
        error: maybe("error")?.map(|e| parsed("versions.error", &e)).transpose()?,
        snapshot: maybe("snapshot")?
            .map(|s| parsed("versions.snapshot", &s))
            .transpose()?,
        snapshot_error: maybe("snapshot_error")?,
        reused: maybe("reused")?.map(|r| parsed("versions.reused", &r)).transpose()?,
        phases: parsed("versions.phases", &text("phases")?)?,
        renewal: renewals::from_row(row)?,
    })
}
