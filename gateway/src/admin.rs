//! The admin API: the key is checked here, everything else is up to the scheduler.

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::AUTHORIZATION;
use http::{Request, Response, Version};
use http_body_util::{BodyExt as _, Limited};
use rekindle_wire::ApiError;
use rekindle_wire::headers::{PLATFORM_ERROR, REQUEST_ID};
use tracing::Instrument as _;

use crate::headers;
use crate::scheduler::SchedulerClient;

const ERROR_MAX: usize = 256 << 10;

/// Forwards a request whose key was checked.
pub(crate) async fn pass_on(
    scheduler: &SchedulerClient,
    mut request: Request<Body>,
    request_id: &str,
) -> Response<Body> {
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
    // The caller may use HTTP/2, which the connection to the scheduler does not speak.
    *request.version_mut() = Version::HTTP_11;
    match scheduler.pass_on(request).instrument(span).await {
        Err(error) => error.with_request_id(request_id).into_response(),
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
