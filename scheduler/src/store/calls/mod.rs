//! Asynchronous invocations. Every change is one statement that names the call's expected state and attempt, so that a
//! late one changes nothing. The attempt's number is the fence: it grows with each claim.

mod endings;
mod posts;
mod rows;
#[cfg(test)]
pub(super) mod tests;

use rekindle_wire::asynchronous::{CallState, ClaimedCall, Encoded};
use rekindle_wire::{CallId, Destination, FunctionId};

use super::{Store, StoreError, failed, function_id, unreadable};
pub(crate) use endings::CallDisposition;
pub(crate) use posts::{CallNotification, DueEvent};
pub(crate) use rows::{CallQuery, CallRow, StoredCall};

#[derive(Debug, Clone)]
pub(crate) struct NewRow {
    pub(crate) id: CallId,
    pub(crate) function: FunctionId,
    pub(crate) idempotency_key: Option<String>,
    /// Owner of its idempotency key.
    pub(crate) owner: String,
    /// Digest of what it asks for, so that a different request is not taken for the same.
    pub(crate) digest: String,
    pub(crate) accepted_unix_ms: i64,
    pub(crate) expires_unix_ms: i64,
    pub(crate) max_attempts: u32,
    pub(crate) request: String,
    /// The request's secret headers, sealed.
    pub(crate) request_sealed: Option<Vec<u8>>,
    pub(crate) body: Vec<u8>,
    pub(crate) callback: Option<String>,
    /// Who is told of its success.
    pub(crate) on_success: Option<Destination>,
    /// Who is told that it was given up.
    pub(crate) on_failure: Option<Destination>,
}

impl NewRow {
    /// Bytes that count against the limit of what may wait.
    pub(crate) fn bytes(&self) -> u64 {
        let sealed = self.request_sealed.as_ref().map_or(0, Vec::len);
        (self.request.len() + sealed + self.body.len()) as u64
    }
}

/// A call as it is handed to a gateway, with its secret headers as stored.
#[derive(Debug)]
pub(crate) struct SealedClaim {
    pub(crate) call: ClaimedCall,
    pub(crate) request_sealed: Option<Vec<u8>>,
}

/// The earlier call with the same id, or the same idempotency key of the same owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EarlierCall {
    pub(crate) id: CallId,
    pub(crate) digest: String,
}

/// Counts of a function's calls, by what is to be done with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueCounts {
    pub(crate) queued: u64,
    pub(crate) running: u64,
    /// Bytes of both.
    pub(crate) bytes: u64,
    /// When the oldest of both was accepted.
    pub(crate) oldest_unix_ms: i64,
}

/// The counts of every function that has any calls.
pub(crate) type Queues = Vec<(FunctionId, QueueCounts)>;

impl Store {
    /// Stores a call; it is durable once this returns. Returns the earlier call if its id, or its owner's idempotency
    /// key, is known.
    pub(crate) async fn add_call(&self, new: &NewRow) -> Result<Option<EarlierCall>, StoreError> {
        let doing = "keep a call";
        let added = sqlx::query(
            "INSERT INTO async_calls (id, function, state, idempotency_key, digest, accepted_unix_ms, due_unix_ms, \
             expires_unix_ms, max_attempts, attempts, failures, request, body, bytes, callback, callback_attempts, \
             owner, request_sealed, namespace, on_success, on_failure) \
             VALUES ($1, $2, 'queued', $3, $4, $5, $5, $6, $7, 0, 0, $8, $9, $10, $11, 0, $12, $13, $14, $15, $16) \
             ON CONFLICT DO NOTHING",
        )
        .bind(new.id.as_str())
        .bind(new.function.name())
        .bind(new.idempotency_key.as_deref())
        .bind(&new.digest)
        .bind(new.accepted_unix_ms)
        .bind(new.expires_unix_ms)
        .bind(i64::from(new.max_attempts))
        .bind(&new.request)
        .bind(new.body.as_slice())
        .bind(i64::try_from(new.bytes()).unwrap_or(i64::MAX))
        .bind(new.callback.as_deref())
        .bind(&new.owner)
        .bind(new.request_sealed.as_deref())
        .bind(new.function.namespace())
        .bind(new.on_success.as_ref().map(Destination::to_string))
        .bind(new.on_failure.as_ref().map(Destination::to_string))
        .execute(&self.writes)
        .await
        .map_err(failed(doing))?;
        if added.rows_affected() > 0 {
            return Ok(None);
        }
        match self.earlier_call(new).await? {
            Some(earlier) => Ok(Some(earlier)),
            // It was removed in between, after a day.
            None => Err(failed(doing)(sqlx::Error::RowNotFound)),
        }
    }

    /// The call with the same id, or the same idempotency key of the same owner, if there is one.
    pub(crate) async fn earlier_call(&self, new: &NewRow) -> Result<Option<EarlierCall>, StoreError> {
        let doing = "look for an earlier call";
        let found: Option<(String, String)> = sqlx::query_as(
            "SELECT id, digest FROM async_calls \
             WHERE id = $3 OR (namespace = $5 AND function = $1 AND idempotency_key = $2 AND owner = $4) LIMIT 1",
        )
        .bind(new.function.name())
        .bind(new.idempotency_key.as_deref())
        .bind(new.id.as_str())
        .bind(&new.owner)
        .bind(new.function.namespace())
        .fetch_optional(&self.pool)
        .await
        .map_err(failed(doing))?;
        let Some((id, digest)) = found else { return Ok(None) };
        let id = id.parse().map_err(unreadable("async_calls.id"))?;
        Ok(Some(EarlierCall { id, digest }))
    }

    /// Gives `holder` up to `limit` due calls of a function, until `until_unix_ms`.
    pub(crate) async fn claim_calls(
        &self,
        function: &FunctionId,
        limit: u32,
        holder: &str,
        now_unix_ms: i64,
        until_unix_ms: i64,
    ) -> Result<Vec<SealedClaim>, StoreError> {
        let sql = format!(
            "UPDATE async_calls SET state = 'running', attempts = attempts + 1, holder = $1, due_unix_ms = $2 \
             WHERE id IN ( SELECT id FROM async_calls WHERE state = 'queued' AND namespace = $3 AND function = $4 \
             AND due_unix_ms <= $5 ORDER BY due_unix_ms LIMIT $6{}) RETURNING id, attempts, request, body, \
             request_sealed",
            self.dialect.skip_locked()
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(holder)
            .bind(until_unix_ms)
            .bind(function.namespace())
            .bind(function.name())
            .bind(now_unix_ms)
            .bind(i64::from(limit))
            .fetch_all(&self.writes)
            .await
            .map_err(failed("claim calls"))?;
        let claimed = rows.iter().map(|row| {
            let row = rows::Reader(row);
            let call = ClaimedCall {
                id: row.id("id")?,
                attempt: row.count("attempts")?,
                function: function.clone(),
                request: row.json("request")?,
                body: Encoded(row.bytes("body")?.unwrap_or_default().into()),
            };
            let request_sealed = row.bytes("request_sealed")?;
            Ok(SealedClaim { call, request_sealed })
        });
        claimed.collect()
    }

    /// Renews the claims of `holder` on these attempts.
    pub(crate) async fn renew_calls(
        &self,
        holder: &str,
        held: &[(CallId, u32)],
        until_unix_ms: i64,
    ) -> Result<(), StoreError> {
        let doing = "renew claims";
        // In one transaction, since each alone would have to reach the disk.
        let mut tx = self.writes.begin().await.map_err(failed(doing))?;
        for (id, attempt) in held {
            sqlx::query(
                "UPDATE async_calls SET due_unix_ms = $1 WHERE id = $2 AND attempts = $3 AND holder = $4 \
                 AND state = 'running'",
            )
            .bind(until_unix_ms)
            .bind(id.as_str())
            .bind(i64::from(*attempt))
            .bind(holder)
            .execute(&mut *tx)
            .await
            .map_err(failed(doing))?;
        }
        tx.commit().await.map_err(failed(doing))
    }

    /// Extends all claims until then, whatever was said before: the scheduler was away, and gateways could not reach
    /// it.
    pub(crate) async fn renew_all_calls(&self, until_unix_ms: i64) -> Result<(), StoreError> {
        sqlx::query("UPDATE async_calls SET due_unix_ms = $1 WHERE state = 'running'")
            .bind(until_unix_ms)
            .execute(&self.writes)
            .await
            .map_err(failed("renew all claims"))?;
        Ok(())
    }

    /// Queues calls again whose holders were not heard from in time. Returns their functions, once for each such call.
    pub(crate) async fn release_lost_calls(&self, now_unix_ms: i64) -> Result<Vec<FunctionId>, StoreError> {
        let names: Vec<(String, String)> = sqlx::query_as(
            "UPDATE async_calls SET state = 'queued', holder = NULL WHERE state = 'running' AND due_unix_ms <= $1 \
             RETURNING namespace, function",
        )
        .bind(now_unix_ms)
        .fetch_all(&self.writes)
        .await
        .map_err(failed("release lost calls"))?;
        names
            .iter()
            .map(|(namespace, name)| function_id(namespace, name))
            .collect()
    }

    /// The counts of calls to run.
    pub(crate) async fn call_queues(&self) -> Result<Queues, StoreError> {
        let rows: Vec<(String, String, String, i64, i64, i64)> = sqlx::query_as(
            "SELECT namespace, function, state, COUNT(*), CAST(SUM(bytes) AS BIGINT), MIN(accepted_unix_ms) \
             FROM async_calls WHERE state IN ('queued', 'running') \
             GROUP BY namespace, function, state ORDER BY namespace, function",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("count calls"))?;
        let mut queues = Queues::new();
        for (namespace, name, state, count, bytes, oldest) in rows {
            let name = function_id(&namespace, &name)?;
            if queues.last().is_none_or(|(last, _)| *last != name) {
                let oldest_unix_ms = oldest;
                queues.push((
                    name,
                    QueueCounts {
                        oldest_unix_ms,
                        ..QueueCounts::default()
                    },
                ));
            }
            let Some((_, due)) = queues.last_mut() else { continue };
            let count = count.unsigned_abs();
            match state == CallState::Running.as_str() {
                true => due.running = count,
                false => due.queued = count,
            }
            due.bytes += bytes.unsigned_abs();
            due.oldest_unix_ms = due.oldest_unix_ms.min(oldest);
        }
        Ok(queues)
    }
}
