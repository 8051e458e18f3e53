//! Errors of this host, as callers see them.

use rekindle_init::causes::chain;
use rekindle_wire::{ApiError, ErrorCode};

/// Builds an error of the host, with its causes.
pub(crate) fn unavailable(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::Internal, format!("cannot {what}: {}", chain(error)))
}

/// Builds the error of a restore that fails, with its causes.
pub(crate) fn restore_failed(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::RestoreFailed, unavailable(what, error).message)
}
