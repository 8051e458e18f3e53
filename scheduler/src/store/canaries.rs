//! Canaries: the last one of each function. Whatever else changes the alias `live` ends it.

use rekindle_wire::FunctionId;
use rekindle_wire::api::{Canary, CanaryState};
use sqlx::{Any, Transaction};

use super::{AliasError, Store, StoreError, failed, function_id, json, parsed};

impl Store {
    /// Records a canary's step or end, and has `live` name what it says. Returns `false` if another change has ended
    /// it.
    pub(crate) async fn move_canary(
        &self,
        function: &FunctionId,
        canary: &Canary,
    ) -> Result<Result<bool, AliasError>, StoreError> {
        let doing = "move a canary";
        let mut tx = self.begin(doing).await?;
        let Some(id) = Self::id_of(&mut tx, function, doing).await? else {
            return Ok(Err(AliasError::NoFunction));
        };
        let open: Option<i64> = sqlx::query_scalar("SELECT is_open FROM canaries WHERE function_id = $1")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed(doing))?;
        if open != Some(1) {
            return Ok(Ok(false));
        }
        for target in canary.alias().targets {
            if let Err(refused) = Self::check(&mut tx, (function, id), target.version, doing).await? {
                return Ok(Err(refused));
            }
        }
        Self::set_canary(&mut tx, id, canary, doing).await?;
        if canary.state == CanaryState::RolledBack {
            // A rollback of what serves now does not go there.
            sqlx::query("UPDATE versions SET served = 0 WHERE function_id = $1 AND number = $2")
                .bind(id)
                .bind(i64::from(canary.to.0))
                .execute(&mut *tx)
                .await
                .map_err(failed(doing))?;
        }
        tx.commit().await.map_err(failed(doing))?;
        Ok(Ok(true))
    }

    /// Begins a canary of a version that can serve, in place of any other.
    pub(crate) async fn begin_canary(
        &self,
        function: &FunctionId,
        canary: &Canary,
    ) -> Result<Result<(), AliasError>, StoreError> {
        let doing = "begin a canary";
        let mut tx = self.begin(doing).await?;
        let Some(id) = Self::id_of(&mut tx, function, doing).await? else {
            return Ok(Err(AliasError::NoFunction));
        };
        for target in canary.alias().targets {
            if let Err(refused) = Self::check(&mut tx, (function, id), target.version, doing).await? {
                return Ok(Err(refused));
            }
        }
        Self::set_canary(&mut tx, id, canary, doing).await?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(Ok(()))
    }

    /// Stores a canary with what `live` names because of it.
    pub(super) async fn set_canary(
        tx: &mut Transaction<'static, Any>,
        id: i64,
        canary: &Canary,
        doing: &'static str,
    ) -> Result<(), StoreError> {
        Self::point(tx, id, &canary.alias(), doing).await?;
        sqlx::query(
            "INSERT INTO canaries (function_id, is_open, canary) VALUES ($1, $2, $3) \
             ON CONFLICT (function_id) DO UPDATE SET is_open = excluded.is_open, canary = excluded.canary",
        )
        .bind(id)
        .bind(i64::from(canary.state == CanaryState::Growing))
        .bind(json(canary)?)
        .execute(&mut **tx)
        .await
        .map_err(failed(doing))?;
        Ok(())
    }

    /// Records what a comparison found, if the canary is still open.
    pub(crate) async fn note_canary(&self, function: &FunctionId, canary: &Canary) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE canaries SET canary = $1 WHERE is_open = 1 \
             AND function_id = (SELECT id FROM functions WHERE namespace = $2 AND name = $3)",
        )
        .bind(json(canary)?)
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("note how a canary does"))?;
        Ok(())
    }

    /// The last canary of a function.
    pub(crate) async fn canary(&self, function: &FunctionId) -> Result<Option<Canary>, StoreError> {
        let row: Option<(i64, String)> = sqlx::query_as(
            "SELECT c.is_open, c.canary FROM canaries c JOIN functions f ON f.id = c.function_id \
             WHERE f.namespace = $1 AND f.name = $2",
        )
        .bind(function.namespace())
        .bind(function.name())
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read a canary"))?;
        row.map(|(is_open, canary)| read(is_open, &canary)).transpose()
    }

    /// Every canary that is not over.
    pub(crate) async fn open_canaries(&self) -> Result<Vec<(FunctionId, Canary)>, StoreError> {
        let rows: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT f.namespace, f.name, c.canary FROM canaries c JOIN functions f ON f.id = c.function_id \
             WHERE c.is_open = 1",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read the canaries"))?;
        let open = rows.into_iter();
        open.map(|(namespace, name, canary)| Ok((function_id(&namespace, &name)?, read(1, &canary)?)))
            .collect()
    }
}

fn read(is_open: i64, canary: &str) -> Result<Canary, StoreError> {
    let mut canary: Canary = parsed("canaries.canary", canary)?;
    if is_open == 0 && canary.state == CanaryState::Growing {
        canary.state = CanaryState::Replaced;
    }
    Ok(canary)
}
