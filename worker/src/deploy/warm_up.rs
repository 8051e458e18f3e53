//! The platform's own requests to a function that does not serve yet: `[[warmup]]` of fn.toml.

use axum::body::{Body, Bytes};
use http::StatusCode;
use rekindle_wire::function_config::WarmupRequest;
use rekindle_wire::{ApiError, ErrorCode};

use crate::instance::{Instance, RunningInstance, own_url};

/// Size at which a response is cut, in bytes.
const BODY_MAX: usize = 16 << 20;
/// How much of a failed response is shown, in bytes.
const SHOWN: usize = 1000;

/// Sends all requests, one after the other. Returns those that were answered 4xx, each with its status.
///
/// # Errors
/// Returns `boot_failed` for the first request with a 5xx status or without a response.
pub(crate) async fn send_all(
    instance: &Instance,
    running: &RunningInstance,
    requests: &[WarmupRequest],
) -> Result<Vec<String>, ApiError> {
    let mut refused = Vec::new();
    for request in requests {
        let WarmupRequest { method, path, .. } = request;
        let failed =
            |why: String| ApiError::new(ErrorCode::BootFailed, format!("warm-up request {method} {path} {why}"));
        let (status, body) = send(instance, running, request).await.map_err(failed)?;
        if status.is_server_error() {
            let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
            return Err(failed(format!("was answered {status}: {shown}")));
        }
        if status.is_client_error() {
            refused.push(format!("{method} {path} was answered {status}"));
        }
    }
    Ok(refused)
}

/// Sends one request, and waits for its response as long as an invocation may take. The error is the end of a sentence.
pub(crate) async fn send(
    instance: &Instance,
    running: &RunningInstance,
    warmup: &WarmupRequest,
) -> Result<(StatusCode, Bytes), String> {
    let mut request = http::Request::builder()
        .method(warmup.method.as_str())
        .uri(own_url(&warmup.path))
        .header("x-request-id", "warm-up");
    for (name, value) in &warmup.headers {
        request = request.header(name, value);
    }
    let is_typed = warmup
        .headers
        .keys()
        .any(|name| name.eq_ignore_ascii_case("content-type"));
    if !warmup.body.is_empty() && !is_typed {
        request = request.header("content-type", "application/json");
    }
    // Some servers refuse such a request without its length.
    if warmup.body.is_empty() && !matches!(warmup.method.as_str(), "GET" | "HEAD") {
        request = request.header("content-length", "0");
    }
    let body = Body::from(warmup.body.clone());
    let request = request.body(body).map_err(|e| format!("cannot be sent: {e}"))?;
    let exchange = async {
        let answer = match running.client.send(request).await {
            Ok(answer) => answer,
            Err(e) => return Err(format!("got no answer: {}", instance.no_answer(&e, true).await.message)),
        };
        let status = answer.status();
        let body = axum::body::to_bytes(Body::new(answer.into_body()), BODY_MAX).await;
        Ok((status, body.unwrap_or_default()))
    };
    let limit = instance.spec.config.timeout();
    let answered = tokio::time::timeout(limit, exchange).await;
    answered.unwrap_or_else(|_| Err(format!("was not answered within {} s", limit.as_secs())))
}
