//! Observers of requests to the store, and the span of each request.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::error::SdkError;

use super::StoreError;

/// An event at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    /// A request has ended, including the SDK's own retries. Reading a body counts as a separate request.
    Request {
        /// `get`, `read` (a body), `put`, `look up`, `list`, `delete`, …
        operation: &'static str,
        /// `ok`, `not_found`, `precondition`, `refused`, `server_error`, `unreachable`, `broken` or `timeout`.
        outcome: &'static str,
        /// Duration of the request.
        took: Duration,
    },
    /// Bytes of bodies were received.
    Received(u64),
    /// Bytes of bodies were sent.
    Sent(u64),
}

/// Receives events. It is called on the tasks that wait for the store, so it must not block.
pub type StoreObserver = Arc<dyn Fn(StoreEvent) + Send + Sync>;

/// A one-word description of a request's error.
pub(super) trait Failure {
    fn word(&self) -> &'static str;
}

impl<E> Failure for SdkError<E> {
    fn word(&self) -> &'static str {
        match self {
            Self::TimeoutError(_) => "timeout",
            Self::DispatchFailure(_) => "unreachable",
            Self::ResponseError(_) => "broken",
            Self::ServiceError(refused) => match refused.raw().status().as_u16() {
                404 => "not_found",
                409 | 412 => "precondition",
                500.. => "server_error",
                _ => "refused",
            },
            _ => "broken",
        }
    }
}

impl Failure for StoreError {
    fn word(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::Timeout { .. } => "timeout",
            _ => "broken",
        }
    }
}
