//! Errors of the platform as gRPC's clients understand them: a response of headers alone, with a status (gRPC over
//! HTTP/2, Responses). One that breaks off later has it in its trailers (`ending`).

mod ending;

use axum::body::Body;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Limited};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rekindle_relay::{is_grpc, takes_trailers};
use rekindle_wire::headers::PLATFORM_ERROR;
use rekindle_wire::{ApiError, ErrorCode, FunctionId};

use ending::GrpcStatusBody;

/// Largest error that is read. The platform's own are sentences.
const ERROR_MAX: usize = 64 << 10;
/// Longest message that is sent, bytes. Clients limit all headers to 8 KiB.
const MESSAGE_MAX: usize = 2 << 10;
/// What `grpc-message` has percent-encoded: everything but printable ASCII, and the sign itself.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Status {
    /// As gRPC's clients map the statuses of proxies, and finer where the code says more.
    fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::FunctionTimeout | ErrorCode::RequestTimeout | ErrorCode::Expired => Self::DeadlineExceeded,
            ErrorCode::FunctionError => Self::Unknown,
            ErrorCode::FunctionOutOfMemory
            | ErrorCode::QuotaExceeded
            | ErrorCode::TooLarge
            | ErrorCode::HeadersTooLarge => Self::ResourceExhausted,
            ErrorCode::Internal | ErrorCode::InvalidResponse => Self::Internal,
            _ => match code.status() {
                StatusCode::BAD_REQUEST => Self::InvalidArgument,
                StatusCode::UNAUTHORIZED => Self::Unauthenticated,
                StatusCode::FORBIDDEN => Self::PermissionDenied,
                StatusCode::NOT_FOUND => Self::Unimplemented,
                _ => Self::Unavailable,
            },
        }
    }
}

/// The error if a call's deadline passes before its function answers.
pub(crate) fn deadline_passed(function: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::RequestTimeout,
        format!("{function} did not answer before the call's deadline (grpc-timeout): call it with a later one"),
    )
}

/// What is known of who makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrpcClient {
    takes_trailers: bool,
}

impl GrpcClient {
    /// `None` if the request is no call.
    pub(crate) fn of(request: &Request<Body>) -> Option<Self> {
        let headers = request.headers();
        is_grpc(headers).then(|| Self {
            takes_trailers: request.version() == Version::HTTP_2 && takes_trailers(headers),
        })
    }
}

/// A response to a call: if it is an error of the platform, as a status. If it breaks off later, it ends with one.
pub(crate) async fn answered(answer: Response<Body>, client: GrpcClient) -> Response<Body> {
    if !answer.headers().contains_key(PLATFORM_ERROR) {
        return match client.takes_trailers {
            true if is_grpc(answer.headers()) => {
                let mut answer = answer.map(|body| Body::new(GrpcStatusBody::new(body)));
                // Trailers may come before it is reached.
                answer.headers_mut().remove(CONTENT_LENGTH);
                answer
            }
            _ => answer,
        };
    }
    let (mut parts, body) = answer.into_parts();
    let body = Limited::new(body, ERROR_MAX).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let error = serde_json::from_slice::<ApiError>(&body);
    let error = error.unwrap_or_else(|_| ApiError::new(ErrorCode::Internal, "the platform's error cannot be read"));
    parts.status = StatusCode::OK;
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.remove(RETRY_AFTER);
    let kind = HeaderValue::from_static("application/grpc");
    parts.headers.insert(CONTENT_TYPE, kind);
    set_status(&mut parts.headers, Status::of(error.code), &error);
    Response::from_parts(parts, Body::empty())
}

fn set_status(headers: &mut HeaderMap, status: Status, error: &ApiError) {
    headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from(status as u16));
    let code = error.code.as_str();
    let mut message: String = utf8_percent_encode(&format!("{code}: {}", error.message), MESSAGE).collect();
    message.truncate(MESSAGE_MAX);
    if let Ok(message) = HeaderValue::from_str(&message) {
        headers.insert(HeaderName::from_static("grpc-message"), message);
    }
    if let Some(seconds) = error.retry_after_s {
        let pushback = HeaderValue::from(u64::from(seconds) * 1000);
        headers.insert(HeaderName::from_static("grpc-retry-pushback-ms"), pushback);
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    const CLIENT: GrpcClient = GrpcClient { takes_trailers: true };

    #[tokio::test]
    async fn an_error_is_a_status_without_a_body() {
        let error = ApiError::new(ErrorCode::Throttled, "100 % — busy\nas ever").with_request_id("r-1");
        let answer = answered(error.into_response(), CLIENT).await;
        assert_eq!(answer.status(), 200);
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("grpc-status"), "14");
        assert_eq!(header("grpc-message"), "throttled: 100 %25 %E2%80%94 busy%0Aas ever");
        assert_eq!(header("grpc-retry-pushback-ms"), "1000");
        assert_eq!(
            (header("content-type"), header("x-request-id")),
            ("application/grpc".into(), "r-1".into())
        );
        assert!(!answer.headers().contains_key("content-length") && !answer.headers().contains_key("retry-after"));
        assert!(http_body::Body::is_end_stream(answer.body()));
    }

    #[tokio::test]
    async fn a_function_s_own_response_is_left_alone() {
        let answer = answered((StatusCode::NOT_FOUND, "no such page").into_response(), CLIENT).await;
        assert_eq!(answer.status(), 404);
        assert!(!answer.headers().contains_key("grpc-status"));
    }

    #[test]
    fn a_status_says_whether_to_try_again() {
        for (code, status) in [
            (ErrorCode::NoCapacity, Status::Unavailable),
            (ErrorCode::FunctionCrashed, Status::Unavailable),
            (ErrorCode::FunctionNotFound, Status::Unimplemented),
            (ErrorCode::FunctionTimeout, Status::DeadlineExceeded),
            (ErrorCode::TooLarge, Status::ResourceExhausted),
            (ErrorCode::Unauthorized, Status::Unauthenticated),
            (ErrorCode::BadRequest, Status::InvalidArgument),
        ] {
            assert_eq!(Status::of(code), status, "{code:?}");
        }
    }
}
