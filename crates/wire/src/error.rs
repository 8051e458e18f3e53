//! Error codes that a user can meet, and the common response format: `{"code", "message", "request_id"}`. Each code has
//! a page under `docs/reference/errors/`. A test checks that codes and pages match.

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::headers;

/// Returns an error and its causes as one line, from the outermost inwards, separated by colons.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = ($text:literal $(| $former:literal)?, $status:ident)),+ $(,)?) => {
        /// The error as a stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $($(#[$doc])* $(#[serde(alias = $former)])? $variant),+
        }

        impl ErrorCode {
            /// Every code, for the test that compares documentation and code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code as written in responses and in `docs/reference/errors/`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The word that it was in the release before, if that was another.
            fn former(self) -> Option<&'static str> {
                match self {
                    $($(Self::$variant => Some($former),)?)+
                    _ => None,
                }
            }

            /// The HTTP status of its responses.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status),+ }
            }
        }

        impl std::str::FromStr for ErrorCode {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                match text { $($text $(| $former)? => Ok(Self::$variant),)+ _ => Err(()) }
            }
        }
    };
}

error_codes! {
    /// The request itself is malformed.
    BadRequest = ("bad_request", BAD_REQUEST),
    /// `fn.toml` or the uploaded folder was rejected.
    InvalidConfig = ("invalid_config" | "invalid_manifest", BAD_REQUEST),
    /// The key is missing or wrong.
    Unauthorized = ("unauthorized", UNAUTHORIZED),
    /// The key has not the role that this needs.
    Forbidden = ("forbidden", FORBIDDEN),
    /// There is no function with this name, or no live version of it.
    FunctionNotFound = ("function_not_found", NOT_FOUND),
    /// There is no namespace with this name.
    NamespaceNotFound = ("namespace_not_found", NOT_FOUND),
    /// There is no such path, version or instance.
    NotFound = ("not_found", NOT_FOUND),
    /// The connection was made to a different host, with a different certificate, than the request is for.
    MisdirectedRequest = ("misdirected_request", MISDIRECTED_REQUEST),
    /// A deploy or deletion of this function is in progress.
    Conflict = ("conflict", CONFLICT),
    /// The upload or request body is too large.
    TooLarge = ("too_large", PAYLOAD_TOO_LARGE),
    /// The request has too many header lines, or too long ones.
    HeadersTooLarge = ("headers_too_large", REQUEST_HEADER_FIELDS_TOO_LARGE),
    /// The client sends its request too slowly.
    RequestTimeout = ("request_timeout", REQUEST_TIMEOUT),
    /// The client has reached its maximum of connections, requests in flight or requests per second.
    TooManyRequests = ("too_many_requests", TOO_MANY_REQUESTS),
    /// The function has its maximum number of instances, and its queue is full or the wait timed out.
    Throttled = ("throttled", TOO_MANY_REQUESTS),
    /// The namespace has reached a limit that its operator set.
    QuotaExceeded = ("quota_exceeded", TOO_MANY_REQUESTS),
    /// No worker has room.
    NoCapacity = ("no_capacity", SERVICE_UNAVAILABLE),
    /// A part of the platform is unreachable or shutting down.
    Unavailable = ("unavailable", SERVICE_UNAVAILABLE),
    /// The function did not respond within its timeout.
    FunctionTimeout = ("function_timeout", GATEWAY_TIMEOUT),
    /// An asynchronous invocation became too old before it was answered.
    Expired = ("expired", GATEWAY_TIMEOUT),
    /// The handler threw an exception.
    FunctionError = ("function_error", BAD_GATEWAY),
    /// The function's response is not HTTP or has too many headers, or the function closed the connection instead.
    InvalidResponse = ("invalid_response", BAD_GATEWAY),
    /// The function's process ended before it had responded.
    FunctionCrashed = ("function_crashed", BAD_GATEWAY),
    /// The function exceeded its memory limit and was killed.
    FunctionOutOfMemory = ("function_out_of_memory", BAD_GATEWAY),
    /// The function could not be booted.
    BootFailed = ("boot_failed", BAD_GATEWAY),
    /// A secret that the function names is not set, or cannot be read.
    SecretUnavailable = ("secret_unavailable", BAD_GATEWAY),
    /// The function's snapshot could not be restored, and booting was not possible either.
    RestoreFailed = ("restore_failed", BAD_GATEWAY),
    /// A page of the snapshot is corrupt, missing or unreachable. The instance was killed.
    SnapshotLost = ("snapshot_lost", BAD_GATEWAY),
    /// The instance was migrating, and the source was lost before all of the memory had arrived.
    MigrationLost = ("migration_lost", BAD_GATEWAY),
    /// Dependencies or files of the function could not be built.
    BuildFailed = ("build_failed", UNPROCESSABLE_ENTITY),
    /// Copies of the function would share random numbers, which its `snapshot = "unique"` forbids.
    NotUnique = ("not_unique", UNPROCESSABLE_ENTITY),
    /// The instance that the gateway wanted is gone. The gateway places the request again. Not visible to users.
    InstanceGone = ("instance_gone", GONE),
    /// The instance already has its maximum of requests in flight. The gateway places the request again. Not visible to
    /// users.
    InstanceBusy = ("instance_busy", CONFLICT),
    /// The function's server refused the request unseen. The gateway places it again. Not visible to users.
    RequestRefused = ("request_refused", SERVICE_UNAVAILABLE),
    /// Another gateway has a newer lease on the instance. The gateway places the request again. Not visible to users.
    LeaseEnded = ("lease_ended", CONFLICT),
    /// Two roles are of releases that do not understand each other.
    VersionMismatch = ("version_mismatch", SERVICE_UNAVAILABLE),
    /// Functions have called each other so often that it looks like a loop.
    CallTooDeep = ("call_too_deep", LOOP_DETECTED),
    /// A bug in the platform.
    Internal = ("internal", INTERNAL_SERVER_ERROR),
}

/// An error as a user receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{code}: {message}", code = code.as_str())]
pub struct ApiError {
    /// The error as a stable word.
    pub code: ErrorCode,
    /// The word that `code` was in the release before, if that was another. The next release leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_code: Option<String>,
    /// The error and its remedy, for people.
    pub message: String,
    /// The invocation or call that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Seconds after which a retry makes sense. Also sent as `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    /// An error with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let retry_after_s = match code {
            ErrorCode::TooManyRequests | ErrorCode::Throttled | ErrorCode::NoCapacity | ErrorCode::Unavailable => {
                Some(1)
            }
            _ => None,
        };
        Self {
            code,
            former_code: code.former().map(str::to_owned),
            message: message.into(),
            request_id: None,
            retry_after_s,
        }
    }

    /// The same error, with the id of the request that it belongs to.
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // Strings and a number: always valid JSON. The newline is for readers in a terminal.
        let text = serde_json::to_string(&self).unwrap_or_default() + "\n";
        let json = [(http::header::CONTENT_TYPE, "application/json")];
        let mut response = (self.code.status(), json, text).into_response();
        let out = response.headers_mut();
        out.insert(
            HeaderName::from_static(headers::PLATFORM_ERROR),
            HeaderValue::from_static(self.code.as_str()),
        );
        if self.code == ErrorCode::Unauthorized {
            out.insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            out.insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(id) = self.request_id.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
            out.insert(HeaderName::from_static(headers::REQUEST_ID), id);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_back_from_its_text() {
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(json, format!("\"{}\"", code.as_str()));
        }
    }

    #[test]
    fn a_code_that_was_renamed_is_read_and_told_under_both_words() {
        let former = r#"{"code": "invalid_manifest", "message": "no"}"#;
        let read: ApiError = serde_json::from_str(former).unwrap();
        assert_eq!(read.code, ErrorCode::InvalidConfig);
        assert_eq!("invalid_manifest".parse(), Ok(ErrorCode::InvalidConfig));
        let told = serde_json::to_value(ApiError::new(ErrorCode::InvalidConfig, "no")).unwrap();
        assert_eq!(
            (&told["code"], &told["former_code"]),
            (&"invalid_config".into(), &"invalid_manifest".into())
        );
        let other = serde_json::to_value(ApiError::new(ErrorCode::Conflict, "no")).unwrap();
        assert_eq!(other.get("former_code"), None);
    }

    #[test]
    fn what_may_be_retried_says_when() {
        let response = ApiError::new(ErrorCode::Throttled, "busy").into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}
