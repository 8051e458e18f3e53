//! The outcomes of requests that fail.

use aws_sdk_s3::error::SdkError;
use rekindle_store::{RequestOutcome, StoreError};

/// A request's error.
pub(crate) trait Failure {
    fn outcome(&self) -> RequestOutcome;
}

impl<E> Failure for SdkError<E> {
    fn outcome(&self) -> RequestOutcome {
        match self {
            Self::TimeoutError(_) => RequestOutcome::Timeout,
            Self::DispatchFailure(_) => RequestOutcome::Unreachable,
            Self::ServiceError(refused) => match refused.raw().status().as_u16() {
                404 => RequestOutcome::NotFound,
                409 | 412 => RequestOutcome::Precondition,
                500.. => RequestOutcome::ServerError,
                _ => RequestOutcome::Refused,
            },
            _ => RequestOutcome::Broken,
        }
    }
}

impl Failure for StoreError {
    fn outcome(&self) -> RequestOutcome {
        Self::outcome(self)
    }
}
