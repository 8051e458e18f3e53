//! Who is told of calls that have ended: callbacks, and destinations, which are sent events. That a call has ended and
//! that both are due is one change of the database.

use rekindle_wire::asynchronous::StoredRequest;
use rekindle_wire::{CallId, Destination};
use sqlx::any::AnyRow;

use super::rows::{CallRow, Reader, StoredCall};
use crate::store::{Store, StoreError, failed, unreadable};

/// Number of due events, from either end, that a claim chooses from.
const LOOKED_AT: u32 = 512;

/// What tells of a call's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallNotification {
    /// The result, for the address that its client or its function names.
    Callback,
    /// An event, for the destination that its function names.
    Event,
}

impl CallNotification {
    /// How its columns begin.
    fn column(self) -> &'static str {
        match self {
            Self::Callback => "callback",
            Self::Event => "destination",
        }
    }

    /// The column of the number of its attempts.
    fn attempts(self) -> &'static str {
        match self {
            Self::Callback => "callback_attempts",
            Self::Event => "destination_attempts",
        }
    }
}

/// A call that has ended, and whose destination is to be told.
#[derive(Debug)]
pub(crate) struct DueEvent {
    pub(crate) stored: StoredCall,
    pub(crate) to: Destination,
    /// Number of the attempt, from 1.
    pub(crate) attempt: u32,
    pub(crate) request: StoredRequest,
    pub(crate) body: Vec<u8>,
}

impl Store {
    /// Whether anybody is still to be told of a call's end.
    pub(crate) async fn has_posts(&self) -> Result<bool, StoreError> {
        let one: Option<i64> = sqlx::query_scalar(
            "SELECT COALESCE(callback_due_unix_ms, destination_due_unix_ms) FROM async_calls \
             WHERE callback_due_unix_ms > 0 OR destination_due_unix_ms > 0 LIMIT 1",
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("look for callbacks"))?;
        Ok(one.is_some())
    }

    /// Claims due callbacks and counts an attempt for each. They are due again at `again_unix_ms` unless their outcome
    /// is reported.
    pub(crate) async fn claim_callbacks(
        &self,
        limit: u32,
        now_unix_ms: i64,
        again_unix_ms: i64,
    ) -> Result<Vec<StoredCall>, StoreError> {
        let sql = format!(
            "UPDATE async_calls SET callback_attempts = callback_attempts + 1, callback_due_unix_ms = $1 WHERE id IN ( \
             SELECT id FROM async_calls WHERE callback_due_unix_ms <= $2 ORDER BY callback_due_unix_ms LIMIT $3{}) \
             RETURNING {}",
            self.dialect.skip_locked(),
            CallRow::WITH_ANSWER
        );
        let rows = self
            .claim(sql, limit, now_unix_ms, again_unix_ms, "claim callbacks")
            .await?;
        Ok(self.readable(CallNotification::Callback, &rows, StoredCall::read).await)
    }

    /// Claims due events likewise: those for addresses, or those for functions. Namespaces take turns, so that none
    /// waits for another's many. What was due first and what was due last is looked at: all of it may be too much.
    pub(crate) async fn claim_events(
        &self,
        to_addresses: bool,
        limit: u32,
        now_unix_ms: i64,
        again_unix_ms: i64,
    ) -> Result<Vec<DueEvent>, StoreError> {
        let due = |order: &str| {
            let kind = if to_addresses { "LIKE" } else { "NOT LIKE" };
            format!(
                "SELECT * FROM (SELECT id, namespace, destination_due_unix_ms AS due FROM async_calls \
                 WHERE destination_due_unix_ms <= $2 AND destination {kind} '%://%' \
                 ORDER BY destination_due_unix_ms {order} LIMIT {LOOKED_AT}) AS {order}ending"
            )
        };
        // PostgreSQL locks no rows of a selection with windows.
        let sql = format!(
            "UPDATE async_calls SET destination_attempts = destination_attempts + 1, destination_due_unix_ms = $1 \
             WHERE id IN (SELECT id FROM async_calls WHERE destination_due_unix_ms <= $2 AND id IN (SELECT id FROM ( \
             SELECT id, due, ROW_NUMBER() OVER (PARTITION BY namespace ORDER BY due) AS turn \
             FROM ({} UNION {}) AS first_and_last) AS turns ORDER BY turn, due LIMIT $3){}) RETURNING {}, body",
            due("ASC"),
            due("DESC"),
            self.dialect.skip_locked(),
            CallRow::WITH_ANSWER
        );
        let rows = self
            .claim(sql, limit, now_unix_ms, again_unix_ms, "claim events")
            .await?;
        let read = |row: &AnyRow| {
            let reader = Reader(row);
            let to = reader.text("destination")?.parse();
            Ok(DueEvent {
                to: to.map_err(|e: String| unreadable("async_calls.destination")(std::io::Error::other(e)))?,
                attempt: reader.count("destination_attempts")?,
                request: reader.json("request")?,
                body: reader.bytes("body")?.unwrap_or_default(),
                stored: StoredCall::read(row)?,
            })
        };
        Ok(self.readable(CallNotification::Event, &rows, read).await)
    }

    /// What was claimed. Of a row that cannot be read nobody is told: it must neither hold up the others nor come again
    /// for ever.
    async fn readable<T>(
        &self,
        post: CallNotification,
        rows: &[AnyRow],
        read: impl Fn(&AnyRow) -> Result<T, StoreError>,
    ) -> Vec<T> {
        let mut all = Vec::with_capacity(rows.len());
        for row in rows {
            let error = match read(row) {
                Ok(one) => {
                    all.push(one);
                    continue;
                }
                Err(error) => error,
            };
            let why = "what the database has of this call cannot be read: see the scheduler's log";
            let ended = async {
                let (id, attempt) = (Reader(row).id("id")?, Reader(row).count(post.attempts())?);
                self.end_post(post, &id, (attempt, None), None, Some(why)).await
            };
            let ended = ended.await.map_err(|error| error.to_string());
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, ?ended, "nobody is told how a call ended: its row cannot be read");
        }
        all
    }

    /// Runs a statement that claims: its parameters are when they are due again, the time now, and the limit.
    async fn claim(
        &self,
        sql: String,
        limit: u32,
        now_unix_ms: i64,
        again_unix_ms: i64,
        doing: &'static str,
    ) -> Result<Vec<AnyRow>, StoreError> {
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(again_unix_ms)
            .bind(now_unix_ms)
            .bind(i64::from(limit))
            .fetch_all(&self.writes)
            .await
            .map_err(failed(doing))
    }

    /// Records the outcome of an attempt to tell somebody: done, due again at some time, or failed for good. The
    /// attempt is known by its number and, as a call may end again, by when the call had ended. Returns whether it was
    /// recorded: what is over already, is not.
    pub(crate) async fn end_post(
        &self,
        post: CallNotification,
        id: &CallId,
        (attempt, ended_unix_ms): (u32, Option<i64>),
        again_unix_ms: Option<i64>,
        error: Option<&str>,
    ) -> Result<bool, StoreError> {
        let state = match (again_unix_ms, error) {
            (Some(_), _) => None,
            (None, Some(_)) => Some("failed"),
            (None, None) => Some("delivered"),
        };
        // Of a call that is done, the request was kept for the event. A dead one may be queued again.
        let drops_request = post == CallNotification::Event && again_unix_ms.is_none();
        let body = match drops_request {
            true => {
                ", bytes = CASE WHEN state = 'done' THEN bytes - LENGTH(body) ELSE bytes END, \
                 body = CASE WHEN state = 'done' THEN $7 ELSE body END"
            }
            false => "",
        };
        let sql = format!(
            "UPDATE async_calls SET {0}_state = $1, {0}_due_unix_ms = $2, {0}_error = $3{body} \
             WHERE id = $4 AND {0}_attempts = $5 AND {0}_state IS NULL AND state IN ('done', 'dead') \
             AND finished_unix_ms = COALESCE($6, finished_unix_ms)",
            post.column()
        );
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(state)
            .bind(again_unix_ms)
            .bind(error)
            .bind(id.as_str())
            .bind(i64::from(attempt))
            .bind(ended_unix_ms);
        if drops_request {
            query = query.bind(&b""[..]);
        }
        let done = query.execute(&self.writes).await;
        let done = done.map_err(failed("note whether somebody was told of a call's end"))?;
        Ok(done.rows_affected() > 0)
    }
}
