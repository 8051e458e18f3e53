//! Error codes a user can meet and the one answer format: `{"code", "message", "request_id"}`. Each code has a page under
//! `docs/reference/errors/`; a test holds the two together.

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::headers;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = ($text:literal, $status:ident)),+ $(,)?) => {
        /// What went wrong, as a stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $($(#[$doc])* $variant),+
        }

        impl ErrorCode {
            /// Every code, for the test that holds documentation and code together.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code as written in answers and in `docs/reference/errors/`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The HTTP status it is answered with.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status),+ }
            }
        }

        impl std::str::FromStr for ErrorCode {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                match text { $($text => Ok(Self::$variant),)+ _ => Err(()) }
            }
        }
    };
}

error_codes! {
    /// The request itself is malformed.
    BadRequest = ("bad_request", BAD_REQUEST),
    /// `fn.toml` or the uploaded folder was refused.
    InvalidManifest = ("invalid_manifest", BAD_REQUEST),
    /// No or a wrong key.
    Unauthorized = ("unauthorized", UNAUTHORIZED),
    /// No function of that name, or no live version of it.
    FunctionNotFound = ("function_not_found", NOT_FOUND),
    /// No such path, version or instance.
    NotFound = ("not_found", NOT_FOUND),
    /// The connection was made to another host than the request is for, with another certificate.
    MisdirectedRequest = ("misdirected_request", MISDIRECTED_REQUEST),
    /// A deploy or delete of this function is under way.
    Conflict = ("conflict", CONFLICT),
    /// The upload or request body is larger than allowed.
    TooLarge = ("too_large", PAYLOAD_TOO_LARGE),
    /// The request has too many header lines, or too long ones.
    HeadersTooLarge = ("headers_too_large", REQUEST_HEADER_FIELDS_TOO_LARGE),
    /// The client sends its request too slowly.
    RequestTimeout = ("request_timeout", REQUEST_TIMEOUT),
    /// The client has as many connections, requests in flight or requests a second as one may have.
    TooManyRequests = ("too_many_requests", TOO_MANY_REQUESTS),
    /// The function is at its maximum of instances and its queue is full, or its wait ran out.
    Throttled = ("throttled", TOO_MANY_REQUESTS),
    /// No worker has room.
    NoCapacity = ("no_capacity", SERVICE_UNAVAILABLE),
    /// A part of the platform cannot be reached or is shutting down.
    Unavailable = ("unavailable", SERVICE_UNAVAILABLE),
    /// The function did not answer within its timeout.
    FunctionTimeout = ("function_timeout", GATEWAY_TIMEOUT),
    /// An asynchronous invocation was not answered before it was too old.
    Expired = ("expired", GATEWAY_TIMEOUT),
    /// The handler threw.
    FunctionError = ("function_error", BAD_GATEWAY),
    /// What the function answered is no HTTP, or its headers are too many, or it closed the connection instead.
    InvalidResponse = ("invalid_response", BAD_GATEWAY),
    /// The function's process ended before it had answered.
    FunctionCrashed = ("function_crashed", BAD_GATEWAY),
    /// The function used more memory than its limit and was killed.
    FunctionOutOfMemory = ("function_out_of_memory", BAD_GATEWAY),
    /// The function could not be started from nothing.
    BootFailed = ("boot_failed", BAD_GATEWAY),
    /// The function's snapshot could not be restored, and booting was not possible either.
    RestoreFailed = ("restore_failed", BAD_GATEWAY),
    /// A page of the snapshot is corrupt, gone or out of reach; the instance was killed.
    SnapshotLost = ("snapshot_lost", BAD_GATEWAY),
    /// The instance was moving to another host, and the host it came from was lost before all its memory had arrived.
    MigrationLost = ("migration_lost", BAD_GATEWAY),
    /// Dependencies or files of the function could not be built.
    BuildFailed = ("build_failed", UNPROCESSABLE_ENTITY),
    /// The instance the gateway wanted is gone; the gateway places the request again. Users do not see it.
    InstanceGone = ("instance_gone", GONE),
    /// The instance has as many requests in it as it takes; the gateway places the request again. Users do not see it.
    InstanceBusy = ("instance_busy", CONFLICT),
    /// Another gateway has a newer lease on the instance; the gateway places the request again. Users do not see it.
    LeaseEnded = ("lease_ended", CONFLICT),
    /// A defect of the platform.
    Internal = ("internal", INTERNAL_SERVER_ERROR),
}

/// An error as a user receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{code}: {message}", code = code.as_str())]
pub struct ApiError {
    /// What went wrong, as a stable word.
    pub code: ErrorCode,
    /// What went wrong and what to do, for a person.
    pub message: String,
    /// The invocation or call it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// When it is worth trying again, in seconds; also sent as `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    /// An error of `code`, told as `message`.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let retry_after_s = match code {
            ErrorCode::TooManyRequests | ErrorCode::Throttled | ErrorCode::NoCapacity | ErrorCode::Unavailable => {
                Some(1)
            }
            _ => None,
        };
        Self {
            code,
            message: message.into(),
            request_id: None,
            retry_after_s,
        }
    }

    /// The same, naming the request it belongs to.
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // Strings and a number: always JSON. With a newline, for who reads it in a terminal.
        let text = serde_json::to_string(&self).unwrap_or_default() + "\n";
        let json = [(http::header::CONTENT_TYPE, "application/json")];
        let mut response = (self.code.status(), json, text).into_response();
        let out = response.headers_mut();
        out.insert(
            HeaderName::from_static(headers::PLATFORM_ERROR),
            HeaderValue::from_static(self.code.as_str()),
        );
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
    fn what_may_be_retried_says_when() {
        let response = ApiError::new(ErrorCode::Throttled, "busy").into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}
