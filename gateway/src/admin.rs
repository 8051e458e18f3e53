//! The admin API: the caller's role is checked here, everything else is up to the scheduler.

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::AUTHORIZATION;
use http::{HeaderName, Request, Response, Version};
use http_body_util::{BodyExt as _, Limited};
use rekindle_wire::access::Caller;
use rekindle_wire::function_config::ByteSize;
use rekindle_wire::headers::{CALLER, PLATFORM_ERROR, REQUEST_ID};
use rekindle_wire::interface::users;
use rekindle_wire::{ApiError, ErrorCode};
use tracing::Instrument as _;

use crate::body::{Intake, Sender, Upload};
use crate::headers;
use crate::scheduler::SchedulerClient;

const ERROR_MAX: usize = 256 << 10;
/// Largest body of an operation that is no deploy. A secret is the largest that there is, with 64 KiB.
const BODY_MAX: usize = 128 << 10;
/// The operation with a large body, which is passed on while it comes. The scheduler has a limit for it.
const DEPLOY: &str = "deploy";

/// Refuses a request that its caller may not make.
pub(crate) fn check<B>(request: &Request<B>, caller: &Caller) -> Result<(), ApiError> {
    let uri = request.uri();
    match users::needed(request.method(), uri.path(), uri.query())? {
        Some(needed) => needed.check(caller),
        // The scheduler knows whether the path or the method is wrong, and does nothing.
        None if caller.is_platform() => Ok(()),
        None => Err(ApiError::new(
            ErrorCode::NotFound,
            format!("there is no {} {}: see /v1/openapi.json", request.method(), uri.path()),
        )),
    }
}

/// Receives the body of a request: that of a deploy as far as the rest can be passed on, any other whole. A client that
/// sends slowly holds nothing of the scheduler's, and what is received counts as memory of bodies.
pub(crate) async fn receive(
    intake: &Intake,
    request: Request<Body>,
    sender: &Sender,
) -> Result<(Request<()>, Upload), ApiError> {
    let (parts, body) = request.into_parts();
    let is_deploy = users::touched(&parts.method, parts.uri.path()).is_some_and(|touched| touched.name == DEPLOY);
    let upload = if is_deploy {
        intake.receive(&parts.headers, body, u64::MAX, sender).await?
    } else {
        let received = intake.whole(body, BODY_MAX, sender.client.as_ref()).await?;
        Upload::Kept(received.ok_or_else(too_large)?)
    };
    Ok((Request::from_parts(parts, ()), upload))
}

fn too_large() -> ApiError {
    ApiError::new(
        ErrorCode::TooLarge,
        format!(
            "the request's body is over {}, which is more than any operation of the API takes but a deploy (a secret \
             has at most 64 KiB)",
            ByteSize(BODY_MAX as u64)
        ),
    )
}

/// Forwards a request that its caller may make.
pub(crate) async fn pass_on(
    scheduler: &SchedulerClient,
    (request, upload): (Request<()>, Upload),
    request_id: &str,
    caller: &Caller,
) -> Response<Body> {
    let mut request = request.map(|()| upload.attempt());
    let span = tracing::info_span!(
        "admin",
        otel.name = format!("{} {}", request.method(), request.uri().path()),
        otel.kind = "server",
        rekindle.role = "gateway",
        rekindle.request_id = request_id,
    );
    rekindle_telemetry::set_parent(&span, request.headers());
    let sent = request.headers_mut();
    headers::strip_request(sent);
    sent.remove(AUTHORIZATION);
    sent.remove(http::header::HOST);
    headers::set(sent, REQUEST_ID, request_id);
    sent.insert(HeaderName::from_static(CALLER), caller.header());
    // The caller may use HTTP/2, which the connection to the scheduler does not speak.
    *request.version_mut() = Version::HTTP_11;
    match scheduler.pass_on(request).instrument(span).await {
        Err(error) => {
            let error = upload.check(u64::MAX).err().unwrap_or(error);
            error.with_request_id(request_id).into_response()
        }
        Ok(answer) => {
            let (mut parts, body) = answer.into_parts();
            let refused = parts.headers.contains_key(PLATFORM_ERROR);
            headers::strip_answer(&mut parts.headers);
            headers::set(&mut parts.headers, REQUEST_ID, request_id);
            if !refused {
                return Response::from_parts(parts, Body::new(body));
            }
            let body = Limited::new(body, ERROR_MAX).collect().await.map(|b| b.to_bytes());
            match body.ok().and_then(|b| serde_json::from_slice::<ApiError>(&b).ok()) {
                Some(error) => error.with_request_id(request_id).into_response(),
                None => Response::from_parts(parts, Body::empty()),
            }
        }
    }
}
