//! Turns a request into a stored call.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use rekindle_wire::asynchronous::{BODY_MAX, Encoded, Headers, InvocationKind, NewCall, StoredRequest};
use rekindle_wire::function_config::{ByteSize, check_callback};
use rekindle_wire::headers::{ASYNC_ID, CALL_DEPTH, CALLBACK_URL, IDEMPOTENCY_KEY};
use rekindle_wire::{ApiError, CallId, ErrorCode, FunctionId};
use tracing::Instrument as _;

use super::Targets;
use crate::body::Intake;
use crate::clients::ClientPermit;
use crate::headers;
use crate::scheduler::SchedulerClient;

/// An asynchronous invocation as the router understood it.
pub(crate) struct AsyncInvocation {
    pub(crate) function: FunctionId,
    /// Path and query below the function; starts with `/`.
    pub(crate) path: String,
    pub(crate) invocation: InvocationKind,
    pub(crate) request_id: String,
    pub(crate) peer: IpAddr,
    /// What its client holds of its limits.
    pub(crate) client: Option<Arc<ClientPermit>>,
    /// The name of the key that its client has shown.
    pub(crate) owner: Option<String>,
    /// Whether its client may name any callback.
    pub(crate) names_callbacks: bool,
    /// The number of calls between functions that led to it.
    pub(crate) depth: u32,
}

/// Answers 202 once the scheduler has stored the call durably.
pub(crate) async fn accept(
    scheduler: &SchedulerClient,
    intake: &Intake,
    targets: &Targets,
    asked: AsyncInvocation,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let span = tracing::info_span!(
        "accept",
        otel.name = format!("accept {}", asked.function),
        otel.kind = "producer",
        otel.status_code = tracing::field::Empty,
        rekindle.role = "gateway",
        rekindle.request_id = asked.request_id,
        rekindle.async_id = tracing::field::Empty,
        error.type = tracing::field::Empty,
        faas.invoked_name = asked.function.as_str(),
        http.request.method = request.method().as_str(),
        url.path = request.uri().path(),
    );
    rekindle_telemetry::set_parent(&span, request.headers());
    let accepted = keep(scheduler, intake, targets, asked, request)
        .instrument(span.clone())
        .await;
    if let Err(error) = &accepted {
        span.record("error.type", error.code.as_str());
        span.record("otel.status_code", "ERROR");
    }
    accepted
}

async fn keep(
    scheduler: &SchedulerClient,
    intake: &Intake,
    targets: &Targets,
    asked: AsyncInvocation,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut kept = parts.headers;
    let idempotency_key = take(&mut kept, IDEMPOTENCY_KEY)?;
    let callback = take(&mut kept, CALLBACK_URL)?;
    if let (Some(url), false) = (&callback, asked.names_callbacks) {
        check_target(targets, url).await?;
    }
    let body = intake
        .whole(body, BODY_MAX, asked.client.as_ref())
        .await?
        .ok_or_else(too_large)?;
    headers::strip_request(&mut kept);
    if asked.depth > 0 {
        headers::set(&mut kept, CALL_DEPTH, &asked.depth.to_string());
    }
    // The later run belongs to this trace.
    rekindle_telemetry::inject(&mut kept);
    let call = NewCall {
        id: Some(CallId::generate()),
        function: asked.function,
        request: StoredRequest {
            method: parts.method.to_string(),
            path: asked.path,
            invocation: asked.invocation,
            headers: Headers::of(&kept),
            request_id: asked.request_id,
            peer: asked.peer,
        },
        body: Encoded(body.bytes.clone()),
        idempotency_key,
        owner: asked.owner,
        callback,
    };
    let accepted = scheduler.accept_call(&call).await?;
    tracing::Span::current().record("rekindle.async_id", accepted.id.as_str());
    let mut answer = (StatusCode::ACCEPTED, Json(&accepted)).into_response();
    headers::set(answer.headers_mut(), ASYNC_ID, accepted.id.as_str());
    if let Ok(location) = HeaderValue::from_str(&accepted.result) {
        answer.headers_mut().insert(LOCATION, location);
    }
    Ok(answer)
}

/// Refuses a callback address from a caller without a key, unless the operator allows the address.
async fn check_target(targets: &Targets, url: &str) -> Result<(), ApiError> {
    check_callback(url).map_err(|why| ApiError::new(ErrorCode::BadRequest, why))?;
    let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    let host = host.unwrap_or_default();
    if targets.may_be_named_by_anybody(&host).await {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::Unauthorized,
        format!(
            "a callback to {host} needs a key with the role deployer, or to be the `callback` of the function's \
             fn.toml; its operator lets anybody name it by --callback-allow {host}"
        ),
    ))
}

/// Removes and returns a header meant for the gateway.
fn take(map: &mut HeaderMap, name: &'static str) -> Result<Option<String>, ApiError> {
    let Some(value) = map.remove(HeaderName::from_static(name)) else {
        return Ok(None);
    };
    let text = value.to_str().map(str::to_owned);
    text.map(Some).map_err(|_| {
        ApiError::new(
            ErrorCode::BadRequest,
            format!("{name} has to be visible ASCII characters"),
        )
    })
}

fn too_large() -> ApiError {
    ApiError::new(
        ErrorCode::TooLarge,
        format!(
            "the body of an asynchronous invocation is over the limit of {}: send less, or pass a reference to the \
             data",
            ByteSize(BODY_MAX as u64)
        ),
    )
}
