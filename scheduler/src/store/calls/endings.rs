//! How calls end, are queued again and expire.

use rekindle_wire::asynchronous::StoredResponse;
use rekindle_wire::{ApiError, CallId, FunctionId};
use sqlx::{Any, Transaction};

use super::CallNotification;
use crate::store::{Store, StoreError, failed, function_id, json};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ForgottenCalls {
    pub(crate) calls: u64,
    /// Those of them of whose end somebody was still to be told.
    pub(crate) untold: Vec<(FunctionId, CallNotification)>,
}

/// What happens to a call after an attempt. The response's secret headers are passed separately, sealed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallDisposition {
    /// It was answered.
    Done { answer: StoredResponse },
    /// It is given up.
    Dead {
        answer: Option<StoredResponse>,
        error: ApiError,
    },
    /// It is queued again, due at `due_unix_ms`.
    Again {
        due_unix_ms: i64,
        /// Whether the attempt counts against the maximum.
        counts: bool,
        error: Option<ApiError>,
    },
}

impl Store {
    /// Records the outcome of an attempt. Returns `false` if another attempt has replaced it. A call that is done drops
    /// the secrets of its request. A dead one keeps them sealed, since it may be queued again.
    pub(crate) async fn end_call(
        &self,
        id: &CallId,
        attempt: u32,
        ended: &CallDisposition,
        answer_sealed: Option<&[u8]>,
        now_unix_ms: i64,
    ) -> Result<bool, StoreError> {
        let doing = "note what came of a call";
        let done = match ended {
            CallDisposition::Again {
                due_unix_ms,
                counts,
                error,
            } => sqlx::query(
                "UPDATE async_calls SET state = 'queued', holder = NULL, due_unix_ms = $1, failures = failures + $2, \
                     error = COALESCE($3, error) WHERE id = $4 AND attempts = $5 AND state = 'running'",
            )
            .bind(due_unix_ms)
            .bind(i64::from(*counts))
            .bind(error.as_ref().map(json).transpose()?)
            .bind(id.as_str())
            .bind(i64::from(attempt))
            .execute(&self.writes)
            .await,
            // A late answer is as good as one in time, unless another attempt is running.
            CallDisposition::Done { answer } => sqlx::query(
                "UPDATE async_calls SET state = 'done', holder = NULL, error = NULL, answer = $1, answer_body = $2, \
                     body = CASE WHEN on_success IS NULL THEN $3 ELSE body END, \
                     bytes = CASE WHEN on_success IS NULL THEN $4 ELSE bytes + $4 END, \
                     finished_unix_ms = $5, request_sealed = NULL, answer_sealed = $8, destination = on_success, \
                     destination_due_unix_ms = CASE WHEN on_success IS NULL THEN NULL ELSE $5 END, \
                     callback_due_unix_ms = CASE WHEN callback IS NULL THEN NULL ELSE $5 END \
                     WHERE id = $6 AND attempts = $7 AND state IN ('running', 'queued')",
            )
            .bind(json(&bodiless(answer))?)
            .bind(answer.body.0.as_ref())
            .bind(&b""[..])
            .bind(i64::try_from(answer.body.0.len()).unwrap_or(i64::MAX))
            .bind(now_unix_ms)
            .bind(id.as_str())
            .bind(i64::from(attempt))
            .bind(answer_sealed)
            .execute(&self.writes)
            .await,
            CallDisposition::Dead { answer, error } => {
                sqlx::query(
                    "UPDATE async_calls SET state = 'dead', holder = NULL, error = $1, answer = $2, answer_body = $3, \
                     finished_unix_ms = $4, failures = failures + 1, answer_sealed = $7, destination = on_failure, \
                     destination_due_unix_ms = CASE WHEN on_failure IS NULL THEN NULL ELSE $4 END, \
                     callback_due_unix_ms = CASE WHEN callback IS NULL THEN NULL ELSE $4 END \
                     WHERE id = $5 AND attempts = $6 AND state = 'running'",
                )
                .bind(json(error)?)
                .bind(answer.as_ref().map(|a| json(&bodiless(a))).transpose()?)
                .bind(answer.as_ref().map(|a| a.body.0.as_ref()))
                .bind(now_unix_ms)
                .bind(id.as_str())
                .bind(i64::from(attempt))
                .bind(answer_sealed)
                .execute(&self.writes)
                .await
            }
        };
        Ok(done.map_err(failed(doing))?.rows_affected() > 0)
    }

    /// Gives up queued calls that are too old: with their last attempt's error, or with `error`. Returns their
    /// functions.
    pub(crate) async fn expire_calls(&self, now_unix_ms: i64, error: &ApiError) -> Result<Vec<FunctionId>, StoreError> {
        let names: Vec<(String, String)> = sqlx::query_as(
            "UPDATE async_calls SET state = 'dead', error = COALESCE(error, $1), finished_unix_ms = $2, \
             destination = on_failure, \
             destination_due_unix_ms = CASE WHEN on_failure IS NULL THEN NULL ELSE $2 END, \
             callback_due_unix_ms = CASE WHEN callback IS NULL THEN NULL ELSE $2 END \
             WHERE state = 'queued' AND expires_unix_ms <= $2 RETURNING namespace, function",
        )
        .bind(json(error)?)
        .bind(now_unix_ms)
        .fetch_all(&self.writes)
        .await
        .map_err(failed("give up old calls"))?;
        names
            .iter()
            .map(|(namespace, name)| function_id(namespace, name))
            .collect()
    }

    /// Queues a dead call again, as if it came now. Returns `false` if it is not dead, or its function was deleted.
    pub(crate) async fn retry_call(&self, id: &CallId, now_unix_ms: i64) -> Result<bool, StoreError> {
        let done = sqlx::query(sqlx::AssertSqlSafe(format!("{ANEW} AND id = $2")))
            .bind(now_unix_ms)
            .bind(id.as_str())
            .execute(&self.writes)
            .await
            .map_err(failed("queue a call anew"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Queues all dead calls of a function again, but those of an earlier one of its name. Returns how many.
    pub(crate) async fn retry_dead_calls(&self, function: &FunctionId, now_unix_ms: i64) -> Result<u64, StoreError> {
        let done = sqlx::query(sqlx::AssertSqlSafe(format!(
            "{ANEW} AND namespace = $2 AND function = $3"
        )))
        .bind(now_unix_ms)
        .bind(function.namespace())
        .bind(function.name())
        .execute(&self.writes)
        .await
        .map_err(failed("queue calls anew"))?;
        Ok(done.rows_affected())
    }

    /// Deletes a call that is not running.
    pub(crate) async fn remove_call(&self, id: &CallId) -> Result<bool, StoreError> {
        let done = sqlx::query("DELETE FROM async_calls WHERE id = $1 AND state <> 'running'")
            .bind(id.as_str())
            .execute(&self.writes)
            .await
            .map_err(failed("remove a call"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Deletes calls in `state`: first those that ended before `before_unix_ms`; then each function's oldest beyond
    /// `bytes_each` bytes; then those beyond `bytes_all`, from the functions that have the most. Each keeps as much as
    /// the next, so that no function loses its calls to another's. Those of whose end somebody is to be told go last.
    pub(crate) async fn forget_calls(
        &self,
        state: &str,
        before_unix_ms: i64,
        bytes_each: i64,
        bytes_all: i64,
    ) -> Result<ForgottenCalls, StoreError> {
        let doing = "forget calls";
        let old: Vec<ForgottenRow> = sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "DELETE FROM async_calls WHERE state = $1 AND finished_unix_ms <= $2 {RETURNING_DUE}"
        )))
        .bind(state)
        .bind(before_unix_ms)
        .fetch_all(&self.writes)
        .await
        .map_err(failed(doing))?;
        // Small calls count for their row, too.
        let beyond: Vec<ForgottenRow> = sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "DELETE FROM async_calls WHERE state = $1 AND id IN (SELECT id FROM ( \
             SELECT id, own, SUM(size) OVER (ORDER BY own, id) AS so_far FROM ( \
             SELECT id, bytes + 512 AS size, \
             SUM(bytes + 512) OVER (PARTITION BY namespace, function ORDER BY \
             CASE WHEN COALESCE(destination_due_unix_ms, callback_due_unix_ms) IS NULL THEN 1 ELSE 0 END, \
             finished_unix_ms DESC, id DESC) AS own \
             FROM async_calls WHERE state = $1) each_function) newest WHERE own > $2 OR so_far > $3) {RETURNING_DUE}"
        )))
        .bind(state)
        .bind(bytes_each)
        .bind(bytes_all)
        .fetch_all(&self.writes)
        .await
        .map_err(failed(doing))?;
        let mut forgotten = ForgottenCalls::default();
        for (namespace, name, event, callback) in old.into_iter().chain(beyond) {
            forgotten.calls += 1;
            for (post, due) in [(CallNotification::Event, event), (CallNotification::Callback, callback)] {
                if due.is_some() {
                    forgotten.untold.push((function_id(&namespace, &name)?, post));
                }
            }
        }
        Ok(forgotten)
    }

    /// Gives up a deleted function's calls.
    pub(in crate::store) async fn abandon_calls(
        tx: &mut Transaction<'static, Any>,
        function: &FunctionId,
        error: &ApiError,
        now_unix_ms: i64,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE async_calls SET state = 'dead', holder = NULL, error = $1, finished_unix_ms = $2, \
             destination = on_failure, \
             destination_due_unix_ms = CASE WHEN on_failure IS NULL THEN NULL ELSE $2 END, \
             callback_due_unix_ms = CASE WHEN callback IS NULL THEN NULL ELSE $2 END \
             WHERE namespace = $3 AND function = $4 AND state IN ('queued', 'running')",
        )
        .bind(json(error)?)
        .bind(now_unix_ms)
        .bind(function.namespace())
        .bind(function.name())
        .execute(&mut **tx)
        .await
        .map_err(failed("give a function's calls up"))?;
        Ok(())
    }
}

/// What is said of a call that is forgotten, and as what it is read.
const RETURNING_DUE: &str = "RETURNING namespace, function, destination_due_unix_ms, callback_due_unix_ms";
type ForgottenRow = (String, String, Option<i64>, Option<i64>);

/// A function that was made after a call is another one, and may be somebody else's.
const ANEW: &str = "UPDATE async_calls SET state = 'queued', holder = NULL, failures = 0, due_unix_ms = $1, \
     accepted_unix_ms = $1, expires_unix_ms = $1 + expires_unix_ms - accepted_unix_ms, error = NULL, answer = NULL, \
     answer_body = NULL, answer_sealed = NULL, finished_unix_ms = NULL, callback_state = NULL, \
     callback_due_unix_ms = NULL, callback_attempts = 0, callback_error = NULL, destination = NULL, \
     destination_state = NULL, destination_due_unix_ms = NULL, destination_attempts = 0, destination_error = NULL \
     WHERE state = 'dead' AND EXISTS (SELECT 1 FROM functions WHERE functions.namespace = async_calls.namespace \
     AND functions.name = async_calls.function AND functions.created_unix_s * 1000 <= async_calls.accepted_unix_ms)";

/// The response without its body, which has a column of its own.
fn bodiless(answer: &StoredResponse) -> StoredResponse {
    StoredResponse {
        body: rekindle_wire::asynchronous::Encoded::default(),
        ..answer.clone()
    }
}
