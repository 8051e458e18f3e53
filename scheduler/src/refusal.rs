//! Errors on their way to users.

use rekindle_wire::error::chain;
use rekindle_wire::{ApiError, ErrorCode, FunctionId};

use crate::store::StoreError;

/// An error on its way to the user.
pub(crate) type Refused = ApiError;

/// Message if no worker can take anything.
pub(crate) const NO_WORKER: &str = "no worker takes anything new: none is connected, or all are drained; see \
                                    `fn workers`, then `fn undrain` one or start one with `fn worker`";

/// The error for a function of which nothing is known.
pub(crate) fn unknown_function(name: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::FunctionNotFound,
        format!("no function \"{name}\": `fn list` shows what is deployed"),
    )
}

/// A failure of the database, as users are told of it.
pub(crate) fn from_store(error: StoreError) -> ApiError {
    match error {
        StoreError::Busy(name) => ApiError::new(
            ErrorCode::Conflict,
            format!("a version of {name} is being prepared: wait for it (`fn describe {name}`) and try again"),
        ),
        error => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the scheduler's database failed"
            );
            ApiError::new(
                ErrorCode::Internal,
                format!("{}: see the scheduler's log", chain(&error)),
            )
        }
    }
}
