//! `GET /async-results/{id}`: the result of an asynchronous invocation. Whoever knows the id may ask, since only its
//! client was told it.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::{CONTENT_LENGTH, RETRY_AFTER, TRANSFER_ENCODING};
use http::{HeaderValue, Response, StatusCode};
use rekindle_wire::asynchronous::{BODY_MAX, CallResult, CallState};
use rekindle_wire::function_config::ByteSize;
use rekindle_wire::headers::{ASYNC_ID, ASYNC_STATE, REQUEST_ID};
use rekindle_wire::{ApiError, CallId, ErrorCode};
use serde::Serialize;

use crate::dispatch::without_output;
use crate::headers;
use crate::scheduler::SchedulerClient;

/// Longest time that a client may wait in one request.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What is returned for a call that has not ended.
#[derive(Serialize)]
struct Pending<'a> {
    id: &'a CallId,
    state: CallState,
    attempts: u32,
    /// Error of the last attempt, if another follows.
    error: &'a Option<ApiError>,
}

/// Returns the function's response once there is one, 202 while there is not, and the error of a call that was given
/// up.
pub(crate) async fn result(
    scheduler: &SchedulerClient,
    id: &CallId,
    query: Option<&str>,
    request_id: &str,
) -> Result<Response<Body>, ApiError> {
    let result = scheduler.call_result(id, wait(query)?).await?;
    let mut answer = answer(&result, request_id)?;
    let out = answer.headers_mut();
    headers::set(out, ASYNC_ID, id.as_str());
    headers::set(out, ASYNC_STATE, result.state.as_str());
    Ok(answer)
}

fn answer(result: &CallResult, request_id: &str) -> Result<Response<Body>, ApiError> {
    if !result.state.is_final() {
        let error = result
            .error
            .clone()
            .map(|error| without_output(error, &result.function));
        let pending = Pending {
            id: &result.id,
            state: result.state,
            attempts: result.attempts,
            error: &error,
        };
        let mut answer = (StatusCode::ACCEPTED, Json(pending)).into_response();
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return Ok(answer);
    }
    let Some(kept) = &result.answer else {
        let none = || ApiError::new(ErrorCode::Internal, "nothing is kept of what came of it");
        let error = result.error.clone().unwrap_or_else(none);
        let error = without_output(error, &result.function);
        // Asking again returns the same.
        let error = ApiError {
            retry_after_s: None,
            ..error
        };
        return Ok(error.with_request_id(request_id).into_response());
    };
    if kept.body_dropped {
        return Err(ApiError::new(
            ErrorCode::TooLarge,
            format!(
                "{} answered {} with a body over {}, which is not kept: let it store what is large, and answer a \
                 reference",
                result.function,
                kept.status,
                ByteSize(BODY_MAX as u64)
            ),
        ));
    }
    let mut answer = Response::new(Body::from(kept.body.0.clone()));
    *answer.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    *answer.headers_mut() = kept.headers.map();
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING] {
        answer.headers_mut().remove(name);
    }
    answer.headers_mut().remove(REQUEST_ID);
    Ok(answer)
}

/// `wait=SECONDS` of the query.
fn wait(query: Option<&str>) -> Result<Duration, ApiError> {
    let pairs = query.into_iter().flat_map(|q| q.split('&'));
    let Some(text) = pairs.filter_map(|pair| pair.strip_prefix("wait=")).next_back() else {
        return Ok(Duration::ZERO);
    };
    let seconds = text.trim_end_matches('s').parse::<u64>().map_err(|_| {
        ApiError::new(
            ErrorCode::BadRequest,
            format!("wait={text} is no number of seconds: write for example wait=20"),
        )
    })?;
    Ok(Duration::from_secs(seconds).min(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_in_seconds_and_has_a_limit() {
        assert_eq!(wait(None).unwrap(), Duration::ZERO);
        assert_eq!(wait(Some("a=1&wait=20s")).unwrap(), Duration::from_secs(20));
        assert_eq!(wait(Some("wait=900")).unwrap(), WAIT_MAX);
        assert!(wait(Some("wait=soon")).is_err());
    }
}
