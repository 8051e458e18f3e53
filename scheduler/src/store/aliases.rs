//! Aliases: which versions serve a function's invocations, and under which other names versions are reached.

use std::collections::BTreeMap;

use rekindle_wire::api::{Alias, AliasTarget, VersionState};
use rekindle_wire::{AliasName, ApiError, FunctionId, VersionNumber};
use sqlx::{Any, Transaction};

use super::{Store, StoreError, failed, function_id, unreadable, version_state};

/// Why an alias cannot name a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AliasError {
    /// There is no such function.
    NoFunction,
    /// There is no such version. `was_there` if there was, before it was removed.
    NoVersion { version: VersionNumber, was_there: bool },
    /// The version is in this state, and cannot serve.
    CannotServe {
        version: VersionNumber,
        state: VersionState,
    },
    /// The version serves all invocations already.
    Serves(VersionNumber),
    /// No version served before.
    NothingBefore,
    /// The caller refuses the version.
    Refused(ApiError),
}

/// A rollback that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RolledBack {
    /// What served before.
    pub(crate) from: Vec<AliasTarget>,
    /// The version that serves now.
    pub(crate) to: VersionNumber,
}

impl Store {
    /// Every alias of a function, by name.
    pub(crate) async fn aliases(&self, function: &FunctionId) -> Result<Vec<Alias>, StoreError> {
        let rows: Vec<(String, String, String, i64, i64)> = sqlx::query_as(
            "SELECT f.namespace, f.name, a.name, a.number, a.weight FROM aliases a JOIN functions f \
             ON f.id = a.function_id WHERE f.namespace = $1 AND f.name = $2 ORDER BY a.name, a.number",
        )
        .bind(function.namespace())
        .bind(function.name())
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read a function's aliases"))?;
        Ok(grouped(rows)?.into_iter().map(|(_, alias)| alias).collect())
    }

    pub(crate) async fn all_aliases(&self) -> Result<Vec<(FunctionId, Alias)>, StoreError> {
        let rows: Vec<(String, String, String, i64, i64)> = sqlx::query_as(
            "SELECT f.namespace, f.name, a.name, a.number, a.weight FROM aliases a JOIN functions f \
             ON f.id = a.function_id ORDER BY f.namespace, f.name, a.name, a.number",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the aliases"))?;
        grouped(rows)
    }

    /// Has an alias name these versions, and no others.
    pub(crate) async fn set_alias(
        &self,
        function: &FunctionId,
        alias: &Alias,
    ) -> Result<Result<(), AliasError>, StoreError> {
        let doing = "set an alias";
        let mut tx = self.begin(doing).await?;
        let Some(id) = Self::id_of(&mut tx, function, doing).await? else {
            return Ok(Err(AliasError::NoFunction));
        };
        for target in &alias.targets {
            if let Err(refused) = Self::check(&mut tx, (function, id), target.version, doing).await? {
                return Ok(Err(refused));
            }
        }
        Self::point(&mut tx, id, alias, doing).await?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(Ok(()))
    }

    /// Removes an alias. Returns whether there was one.
    pub(crate) async fn remove_alias(&self, function: &FunctionId, name: &AliasName) -> Result<bool, StoreError> {
        let removed = sqlx::query(
            "DELETE FROM aliases WHERE name = $1 \
             AND function_id = (SELECT id FROM functions WHERE namespace = $2 AND name = $3)",
        )
        .bind(name.as_str())
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("remove an alias"))?;
        Ok(removed.rows_affected() > 0)
    }

    /// Has `live` name one version alone: this one, or the one that served before the newest of those that serve;
    /// unless the caller `refuses` it.
    pub(crate) async fn roll_back(
        &self,
        function: &FunctionId,
        to: Option<VersionNumber>,
        refuses: impl Fn(VersionNumber) -> Option<ApiError> + Send,
    ) -> Result<Result<RolledBack, AliasError>, StoreError> {
        let doing = "roll a function back";
        let mut tx = self.begin(doing).await?;
        let Some(id) = Self::id_of(&mut tx, function, doing).await? else {
            return Ok(Err(AliasError::NoFunction));
        };
        let serving: Vec<(i64, i64)> = sqlx::query_as(
            "SELECT a.number, a.weight FROM aliases a JOIN versions v \
             ON v.function_id = a.function_id AND v.number = a.number \
             WHERE a.function_id = $1 AND a.name = 'live' ORDER BY v.served DESC",
        )
        .bind(id)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed(doing))?;
        let mut from = Vec::new();
        for (number, weight) in serving {
            from.push(target(number, weight)?);
        }
        let newest = from.first().map(|target| target.version);
        let to = match to {
            Some(to) => to,
            None => {
                let before: Option<i64> = sqlx::query_scalar(
                    "SELECT number FROM versions WHERE function_id = $1 AND served > 0 AND number <> $2 \
                     AND state = 'live' ORDER BY served DESC LIMIT 1",
                )
                .bind(id)
                .bind(newest.map_or(0, |newest| i64::from(newest.0)))
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed(doing))?;
                let Some(before) = before else {
                    return Ok(Err(AliasError::NothingBefore));
                };
                number(before)?
            }
        };
        if let Some(why) = refuses(to) {
            return Ok(Err(AliasError::Refused(why)));
        }
        if let [only] = &from[..]
            && only.version == to
        {
            return Ok(Err(AliasError::Serves(to)));
        }
        if let Err(refused) = Self::check(&mut tx, (function, id), to, doing).await? {
            return Ok(Err(refused));
        }
        Self::point(&mut tx, id, &Alias::of(AliasName::live(), to), doing).await?;
        tx.commit().await.map_err(failed(doing))?;
        from.sort_by_key(|target| target.version);
        Ok(Ok(RolledBack { from, to }))
    }

    /// The function's number.
    pub(super) async fn id_of(
        tx: &mut Transaction<'static, Any>,
        function: &FunctionId,
        doing: &'static str,
    ) -> Result<Option<i64>, StoreError> {
        sqlx::query_scalar("SELECT id FROM functions WHERE namespace = $1 AND name = $2")
            .bind(function.namespace())
            .bind(function.name())
            .fetch_optional(&mut **tx)
            .await
            .map_err(failed(doing))
    }

    /// Whether a version can serve.
    pub(super) async fn check(
        tx: &mut Transaction<'static, Any>,
        (function, id): (&FunctionId, i64),
        version: VersionNumber,
        doing: &'static str,
    ) -> Result<Result<(), AliasError>, StoreError> {
        let state: Option<String> =
            sqlx::query_scalar("SELECT state FROM versions WHERE function_id = $1 AND number = $2")
                .bind(id)
                .bind(i64::from(version.0))
                .fetch_optional(&mut **tx)
                .await
                .map_err(failed(doing))?;
        match state.as_deref().map(version_state).transpose()? {
            Some(VersionState::Live) => Ok(Ok(())),
            Some(state) => Ok(Err(AliasError::CannotServe { version, state })),
            None => {
                let last: Option<i64> =
                    sqlx::query_scalar("SELECT last FROM version_numbers WHERE namespace = $1 AND name = $2")
                        .bind(function.namespace())
                        .bind(function.name())
                        .fetch_optional(&mut **tx)
                        .await
                        .map_err(failed(doing))?;
                let was_there = version.0 > 0 && last.is_some_and(|last| i64::from(version.0) <= last);
                Ok(Err(AliasError::NoVersion { version, was_there }))
            }
        }
    }

    /// Replaces an alias's versions, which exist. Those that begin to serve by it are noted as the last ones that did.
    /// A canary is over.
    pub(super) async fn point(
        tx: &mut Transaction<'static, Any>,
        id: i64,
        alias: &Alias,
        doing: &'static str,
    ) -> Result<(), StoreError> {
        if alias.name.is_live() {
            sqlx::query("UPDATE canaries SET is_open = 0 WHERE function_id = $1")
                .bind(id)
                .execute(&mut **tx)
                .await
                .map_err(failed(doing))?;
            let mut targets = alias.targets.clone();
            // Of several, that with least weight is the newcomer.
            targets.sort_by_key(|target| std::cmp::Reverse((target.weight, std::cmp::Reverse(target.version))));
            for target in targets {
                sqlx::query(
                    "UPDATE versions SET served = 1 + (SELECT MAX(s.served) FROM versions s WHERE s.function_id = $1) \
                     WHERE function_id = $1 AND number = $2 AND NOT EXISTS (SELECT 1 FROM aliases a \
                     WHERE a.function_id = $1 AND a.name = 'live' AND a.number = versions.number)",
                )
                .bind(id)
                .bind(i64::from(target.version.0))
                .execute(&mut **tx)
                .await
                .map_err(failed(doing))?;
            }
        }
        sqlx::query("DELETE FROM aliases WHERE function_id = $1 AND name = $2")
            .bind(id)
            .bind(alias.name.as_str())
            .execute(&mut **tx)
            .await
            .map_err(failed(doing))?;
        for target in &alias.targets {
            sqlx::query("INSERT INTO aliases (function_id, name, number, weight) VALUES ($1, $2, $3, $4)")
                .bind(id)
                .bind(alias.name.as_str())
                .bind(i64::from(target.version.0))
                .bind(i64::from(target.weight))
                .execute(&mut **tx)
                .await
                .map_err(failed(doing))?;
        }
        Ok(())
    }
}

fn number(number: i64) -> Result<VersionNumber, StoreError> {
    let number = u32::try_from(number).map_err(unreadable("aliases.number"))?;
    Ok(VersionNumber(number))
}

fn target(version: i64, weight: i64) -> Result<AliasTarget, StoreError> {
    Ok(AliasTarget {
        version: number(version)?,
        weight: u32::try_from(weight).map_err(unreadable("aliases.weight"))?,
    })
}

fn grouped(rows: Vec<(String, String, String, i64, i64)>) -> Result<Vec<(FunctionId, Alias)>, StoreError> {
    let mut aliases: BTreeMap<(FunctionId, AliasName), Vec<AliasTarget>> = BTreeMap::new();
    for (namespace, function, name, number, weight) in rows {
        let function = function_id(&namespace, &function)?;
        let name = name.parse().map_err(unreadable("aliases.name"))?;
        aliases
            .entry((function, name))
            .or_default()
            .push(target(number, weight)?);
    }
    let all = aliases.into_iter();
    Ok(all
        .map(|((function, name), targets)| (function, Alias { name, targets }))
        .collect())
}
