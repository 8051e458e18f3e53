//! One attempt at one instance: sends the request to its worker, and classifies the possible results.

use axum::body::Body;
use http::header::{RETRY_AFTER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version};
use http_body_util::{BodyExt as _, Limited};
use rekindle_relay::{SendError, shorten_call_timeout};
use rekindle_wire::headers::{CALLER_LEFT_MS, FUNCTION_ERROR, LEASE, PLATFORM_ERROR, TIME_LEFT_MS};
use rekindle_wire::{ApiError, ErrorCode, FunctionId};
use serde::Deserialize;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::body::Upload;
use crate::headers;
use crate::lease::LeasedInstance;
use crate::workers::Workers;

/// Largest error body that is read rather than passed on.
const ERROR_MAX: usize = 256 << 10;

/// A request as it goes to a worker, without what differs between attempts.
pub(crate) struct Outgoing {
    pub(crate) function: FunctionId,
    pub(crate) method: Method,
    /// Path and query below the function, byte for byte as the client sent them; starts with `/`.
    pub(crate) path: String,
    /// Headers without what must not pass, and with what the function is told.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Upload,
    /// How it goes to the worker: by HTTP/2 if its trailers and the response's shall pass.
    pub(crate) version: Version,
    /// Since when its client waits.
    pub(crate) since: std::time::Instant,
    /// Until when its caller waits, if that is a function.
    pub(crate) caller_until: Option<std::time::Instant>,
}

pub(crate) enum AttemptResult {
    /// The function responds; the body is still to come.
    Answered(Response<Body>),
    /// The worker says that the instance is gone and has seen nothing of the request.
    Gone,
    /// The worker says that the instance is busy and has seen nothing of the request.
    Busy,
    /// The worker says that the function's server has refused the request, and seen nothing of it.
    Refused,
    /// The worker says that another gateway has a newer lease; the instance has seen nothing of the request.
    Fenced,
    /// Its worker cannot be reached.
    Unreachable,
    /// The client's body broke off, and the exchange with it. The instance and its worker are unaffected.
    BrokeOff(ApiError),
    /// The connection broke before the response's headers; the function may have the request.
    Broken(ApiError),
    /// The deadline passed before the response's headers.
    TimedOut,
    /// The platform or the handler reports what went wrong. With `instance_ended` the instance cannot be used any more.
    Failed { error: ApiError, instance_ended: bool },
}

/// Sends the request to the leased instance and waits for the response's headers, until `deadline`.
pub(crate) async fn attempt(
    workers: &Workers,
    token: &HeaderValue,
    outgoing: &Outgoing,
    leased: &LeasedInstance,
    deadline: Instant,
) -> AttemptResult {
    let request = match build(workers.scheme(), token, outgoing, leased, deadline) {
        Ok(request) => request,
        Err(error) => return failed(error, false),
    };
    let span = tracing::debug_span!(
        "call worker",
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
        error.type = tracing::field::Empty,
        rekindle.role = "gateway",
        server.address = %leased.address,
        rekindle.instance = %leased.instance,
    );
    let exchange = async {
        let mut request = request;
        rekindle_telemetry::inject(request.headers_mut());
        workers.send(&leased.address, request).await
    };
    let failed_as = |why: &'static str| {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", why);
    };
    let answer = match tokio::time::timeout_at(deadline, exchange.instrument(span.clone())).await {
        Err(_) => {
            failed_as("timeout");
            return AttemptResult::TimedOut;
        }
        // Neither has the request been seen by a worker that ends its connection.
        Ok(Err(error @ (SendError::Connect(_) | SendError::Refused(_)))) => {
            failed_as("unreachable");
            let error = &error as &dyn std::error::Error;
            tracing::warn!(worker = %leased.address, error, "a worker cannot be reached");
            return AttemptResult::Unreachable;
        }
        Ok(Err(_)) if outgoing.body.broke_off() => {
            failed_as("body");
            return AttemptResult::BrokeOff(broke_off());
        }
        Ok(Err(error)) => {
            failed_as("broken");
            let error = &error as &dyn std::error::Error;
            tracing::debug!(worker = %leased.address, error, "a worker's connection broke");
            return AttemptResult::Broken(broken(outgoing));
        }
        Ok(Ok(answer)) => answer,
    };
    if let Some(code) = answer.headers().get(PLATFORM_ERROR).cloned() {
        span.record("error.type", code.to_str().unwrap_or_default());
        span.record("otel.status_code", "ERROR");
        let attempted = platform_error(&code, answer, deadline).await;
        // To its worker it looked as if the function had closed the connection.
        return match attempted {
            AttemptResult::Failed { .. } if outgoing.body.broke_off() => AttemptResult::BrokeOff(broke_off()),
            other => other,
        };
    }
    if answer.headers().contains_key(FUNCTION_ERROR) {
        return function_error(outgoing, answer, deadline).await;
    }
    AttemptResult::Answered(answer)
}

fn build(
    scheme: &str,
    token: &HeaderValue,
    outgoing: &Outgoing,
    leased: &LeasedInstance,
    deadline: Instant,
) -> Result<Request<Body>, ApiError> {
    let uri: Uri = format!(
        "{scheme}://{}/invoke/{}{}",
        leased.address, leased.instance, outgoing.path
    )
    .parse()
    .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("the path cannot be passed on: {e}")))?;
    let mut request = Request::new(outgoing.body.attempt());
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = outgoing.headers.clone();
    headers::set_token(request.headers_mut(), token);
    *request.version_mut() = outgoing.version;
    shorten_call_timeout(request.headers_mut(), outgoing.since.elapsed());
    if outgoing.body.is_of_unknown_length() && outgoing.version != Version::HTTP_2 {
        // Set explicitly, since a GET would otherwise lose its body.
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(TRANSFER_ENCODING, chunked);
    }
    let left = deadline.saturating_duration_since(Instant::now());
    headers::set(request.headers_mut(), TIME_LEFT_MS, &left.as_millis().to_string());
    if let Some(until) = outgoing.caller_until {
        let left = until.saturating_duration_since(std::time::Instant::now());
        headers::set(request.headers_mut(), CALLER_LEFT_MS, &left.as_millis().to_string());
    }
    if let Some(mark) = &leased.mark {
        request.headers_mut().insert(LEASE, mark.clone());
    }
    Ok(request)
}

fn failed(error: ApiError, instance_ended: bool) -> AttemptResult {
    AttemptResult::Failed { error, instance_ended }
}

fn broke_off() -> ApiError {
    ApiError::new(
        ErrorCode::BadRequest,
        "the request's body ended early: send it again, whole",
    )
}

fn broken(outgoing: &Outgoing) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!(
            "the connection to the worker broke before {} answered: the invocation may have run; see `fn logs {}`, and \
             try again",
            outgoing.function, outgoing.function
        ),
    )
}

/// Reads a response that the worker says is not the function's.
async fn platform_error(code: &HeaderValue, answer: Response<Body>, deadline: Instant) -> AttemptResult {
    let code = code.to_str().ok().and_then(|c| c.parse::<ErrorCode>().ok());
    let code = code.unwrap_or(ErrorCode::Internal);
    match code {
        ErrorCode::InstanceGone => return AttemptResult::Gone,
        ErrorCode::InstanceBusy => return AttemptResult::Busy,
        ErrorCode::RequestRefused => return AttemptResult::Refused,
        ErrorCode::LeaseEnded => return AttemptResult::Fenced,
        _ => {}
    }
    let status = answer.status();
    let retry_after_s = answer
        .headers()
        .get(RETRY_AFTER)
        .and_then(|v| v.to_str().ok()?.parse().ok());
    let body = read(answer, deadline).await;
    let mut error = serde_json::from_slice::<ApiError>(&body).unwrap_or_else(|_| {
        ApiError::new(
            code,
            format!("the worker answered {status} without saying why: see `rekindle.log` in its data, or its journal"),
        )
    });
    error.retry_after_s = retry_after_s.or(error.retry_after_s);
    let instance_ended = matches!(
        error.code,
        ErrorCode::FunctionCrashed
            | ErrorCode::FunctionOutOfMemory
            | ErrorCode::BootFailed
            | ErrorCode::RestoreFailed
            | ErrorCode::SnapshotLost
    );
    failed(error, instance_ended)
}

/// What a runtime writes of an exception, in the form that AWS Lambda uses.
#[derive(Deserialize)]
struct ThrownException {
    #[serde(rename = "errorType")]
    kind: Option<String>,
    #[serde(rename = "errorMessage")]
    message: Option<String>,
}

/// The result if the handler threw.
async fn function_error(outgoing: &Outgoing, answer: Response<Body>, deadline: Instant) -> AttemptResult {
    let body = read(answer, deadline).await;
    let thrown = serde_json::from_slice::<ThrownException>(&body).ok();
    let what = match thrown.map(|t| (t.kind, t.message)) {
        Some((Some(kind), Some(message))) => format!("{kind}: {message}"),
        Some((Some(one), None) | (None, Some(one))) => one,
        _ => String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned(),
    };
    let function = &outgoing.function;
    let message = format!("{function} threw {what} (`fn logs {function}` shows what it wrote)");
    failed(ApiError::new(ErrorCode::FunctionError, message), false)
}

/// An error's body, as far as it comes.
async fn read(answer: Response<Body>, deadline: Instant) -> bytes::Bytes {
    let body = Limited::new(answer.into_body(), ERROR_MAX).collect();
    match tokio::time::timeout_at(deadline, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => bytes::Bytes::new(),
    }
}
