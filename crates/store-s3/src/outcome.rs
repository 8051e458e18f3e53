//! What an error of a request is called in metrics and spans.

use aws_sdk_s3::error::SdkError;
use rekindle_store::StoreError;

/// A one-word description of a request's error.
pub(crate) trait Failure {
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
        self.outcome()
    }
}
