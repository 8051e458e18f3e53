//! Calls as they are read.

use rekindle_wire::access::Scope;
use rekindle_wire::asynchronous::{
    AsyncCall, CallResult, CallState, CallbackInfo, Encoded, StoredRequest, StoredResponse,
};
use rekindle_wire::{ApiError, CallId, FunctionName, Namespace};
use serde::de::DeserializeOwned;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use crate::store::{Store, StoreError, failed, function_id, parsed, unreadable};

/// A call without its bodies.
#[derive(Debug, Clone)]
pub(crate) struct CallRow {
    pub(crate) call: AsyncCall,
    pub(crate) max_attempts: u32,
    pub(crate) expires_unix_ms: i64,
    /// Whether anybody may have to be told how it ends, besides its callback.
    pub(crate) has_destination: bool,
    answer: Option<StoredResponse>,
}

/// A call with its response's body, and the response's secret headers as stored.
#[derive(Debug, Clone)]
pub(crate) struct StoredCall {
    pub(crate) row: CallRow,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) answer_sealed: Option<Vec<u8>>,
}

impl CallRow {
    const COLUMNS: &str = "id, namespace, function, state, idempotency_key, accepted_unix_ms, due_unix_ms, \
    expires_unix_ms, max_attempts, \
        attempts, failures, request, error, answer, bytes, finished_unix_ms, callback, callback_state, \
        callback_attempts, callback_error, destination, destination_state, destination_attempts, destination_error, \
        COALESCE(on_success, on_failure) AS destinations";
    pub(super) const WITH_ANSWER: &str = "id, namespace, function, state, idempotency_key, accepted_unix_ms, \
    due_unix_ms, expires_unix_ms, \
        max_attempts, attempts, failures, request, error, answer, bytes, finished_unix_ms, callback, callback_state, \
        callback_attempts, callback_error, destination, destination_state, destination_attempts, destination_error, \
        COALESCE(on_success, on_failure) AS destinations, answer_body, answer_sealed";

    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let row = Reader(row);
        let request: StoredRequest = row.json("request")?;
        let state: CallState = row
            .text("state")?
            .parse()
            .map_err(|e: String| unreadable("async_calls.state")(std::io::Error::other(e)))?;
        let answer: Option<StoredResponse> = row.maybe_json("answer")?;
        let error: Option<ApiError> = row.maybe_json("error")?;
        let told = |[to, state, attempts, error]: [&'static str; 4]| {
            let Some(url) = row.maybe(to)? else { return Ok(None) };
            Ok::<_, StoreError>(Some(CallbackInfo {
                url,
                state: row.maybe(state)?.unwrap_or_else(|| "waiting".to_owned()),
                attempts: row.count(attempts)?,
                error: row.maybe(error)?,
            }))
        };
        let callback = told(["callback", "callback_state", "callback_attempts", "callback_error"])?;
        let destination = told([
            "destination",
            "destination_state",
            "destination_attempts",
            "destination_error",
        ])?;
        let function = function_id(&row.text("namespace")?, &row.text("function")?)?;
        Ok(Self {
            call: AsyncCall {
                id: row.id("id")?,
                function,
                state,
                method: request.method,
                path: request.path,
                request_id: request.request_id,
                idempotency_key: row.maybe("idempotency_key")?,
                accepted_unix_ms: row.number("accepted_unix_ms")?,
                due_unix_ms: Some(row.number("due_unix_ms")?).filter(|_| state == CallState::Queued),
                finished_unix_ms: row.maybe_number("finished_unix_ms")?,
                attempts: row.count("attempts")?,
                failures: row.count("failures")?,
                bytes: row.number("bytes")?.unsigned_abs(),
                status: answer.as_ref().map(|a| a.status),
                error,
                callback,
                destination,
            },
            max_attempts: row.count("max_attempts")?,
            expires_unix_ms: row.number("expires_unix_ms")?,
            has_destination: row.maybe("destinations")?.is_some(),
            answer,
        })
    }
}

#[cfg(test)]
impl CallRow {
    /// A row that no database has.
    pub(crate) fn new(call: AsyncCall, max_attempts: u32, expires_unix_ms: i64) -> Self {
        Self {
            call,
            max_attempts,
            expires_unix_ms,
            has_destination: false,
            answer: None,
        }
    }

    pub(crate) fn answered(&mut self, answer: Option<StoredResponse>) {
        self.answer = answer;
    }
}

impl StoredCall {
    pub(super) fn read(row: &AnyRow) -> Result<Self, StoreError> {
        Ok(Self {
            body: Reader(row).bytes("answer_body")?,
            answer_sealed: Reader(row).bytes("answer_sealed")?,
            row: CallRow::read(row)?,
        })
    }

    /// The result of the call, without its response's secret headers.
    pub(crate) fn result(self) -> CallResult {
        let Self { row, body, .. } = self;
        let body = Encoded(body.unwrap_or_default().into());
        CallResult {
            id: row.call.id,
            function: row.call.function,
            state: row.call.state,
            attempts: row.call.attempts,
            answer: row.answer.map(|answer| StoredResponse { body, ..answer }),
            error: row.call.error,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct CallQuery {
    /// Only calls of functions in it.
    pub(crate) scope: Option<Scope>,
    pub(crate) state: Option<CallState>,
    /// Only calls older than this one.
    pub(crate) before: Option<CallId>,
    pub(crate) limit: u32,
}

impl Store {
    /// A call; `None` if there is none with that id.
    pub(crate) async fn call(&self, id: &CallId) -> Result<Option<CallRow>, StoreError> {
        let sql = format!("SELECT {} FROM async_calls WHERE id = $1", CallRow::COLUMNS);
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("read a call"))?;
        row.map(|r| CallRow::read(&r)).transpose()
    }

    /// A call with its response's body.
    pub(crate) async fn call_with_answer(&self, id: &CallId) -> Result<Option<StoredCall>, StoreError> {
        let sql = format!("SELECT {} FROM async_calls WHERE id = $1", CallRow::WITH_ANSWER);
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("read a call's result"))?;
        row.map(|r| StoredCall::read(&r)).transpose()
    }

    /// Calls, newest first.
    pub(crate) async fn calls(&self, wanted: &CallQuery) -> Result<Vec<AsyncCall>, StoreError> {
        let sql = format!(
            "SELECT {} FROM async_calls WHERE ($1 = '' OR (namespace = $1 AND ($2 = '' OR function = $2))) \
             AND ($3 = '' OR state = $3) \
             AND id < $4 ORDER BY id DESC LIMIT $5",
            CallRow::COLUMNS
        );
        let scope = wanted.scope.as_ref();
        let (namespace, function) = (scope.and_then(Scope::namespace), scope.and_then(Scope::function));
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(namespace.as_ref().map_or("", Namespace::as_str))
            .bind(function.as_ref().map_or("", FunctionName::as_str))
            .bind(wanted.state.map_or("", CallState::as_str))
            // Ids begin with an a.
            .bind(wanted.before.as_ref().map_or("b", CallId::as_str))
            .bind(i64::from(wanted.limit))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list calls"))?;
        rows.iter().map(|r| CallRow::read(r).map(|c| c.call)).collect()
    }
}

/// Reads a row's columns by name.
pub(super) struct Reader<'a>(pub(super) &'a AnyRow);

impl Reader<'_> {
    pub(super) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        self.0.try_get(column).map_err(unreadable(column))
    }

    fn maybe(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        self.0.try_get(column).map_err(unreadable(column))
    }

    fn number(&self, column: &'static str) -> Result<i64, StoreError> {
        self.0.try_get(column).map_err(unreadable(column))
    }

    fn maybe_number(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        self.0.try_get(column).map_err(unreadable(column))
    }

    pub(super) fn bytes(&self, column: &'static str) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.try_get(column).map_err(unreadable(column))
    }

    pub(super) fn count(&self, column: &'static str) -> Result<u32, StoreError> {
        u32::try_from(self.number(column)?).map_err(unreadable(column))
    }

    pub(super) fn id(&self, column: &'static str) -> Result<CallId, StoreError> {
        self.text(column)?.parse().map_err(unreadable(column))
    }

    pub(super) fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, StoreError> {
        parsed(column, &self.text(column)?)
    }

    fn maybe_json<T: DeserializeOwned>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        self.maybe(column)?.map(|text| parsed(column, &text)).transpose()
    }
}
