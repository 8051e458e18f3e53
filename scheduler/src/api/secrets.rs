//! Secrets: set, listed without their values, removed.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use rekindle_wire::api::SecretSummary;
use rekindle_wire::interface::users::{ListSecrets, RemoveSecret, SetSecret};
use rekindle_wire::interface::{Call, Params};
use rekindle_wire::secret::SecretValueError;
use rekindle_wire::{ApiError, ErrorCode, SecretValue};

use super::known;
use crate::refusal::Refused;
use crate::secrets;
use crate::state::Scheduler;

pub(super) async fn list(scheduler: Scheduler, call: Call<ListSecrets>) -> Result<Vec<SecretSummary>, Refused> {
    let namespace = known(&scheduler, call.at.namespace)?;
    Ok(secrets::list(&scheduler, &namespace))
}

/// Takes the value as the request's body: it is in no path, and in no message that is logged.
pub(super) async fn set(
    State(scheduler): State<Scheduler>,
    Params(wanted): Params<SetSecret>,
    body: Bytes,
) -> Result<Json<SecretSummary>, Refused> {
    let namespace = known(&scheduler, wanted.namespace)?;
    let value = SecretValue::new(&body).map_err(refused)?;
    let existing = wanted.existing.unwrap_or(false);
    secrets::set(&scheduler, namespace, wanted.name, value, existing)
        .await
        .map(Json)
}

pub(super) async fn remove(scheduler: Scheduler, call: Call<RemoveSecret>) -> Result<(), Refused> {
    let namespace = known(&scheduler, call.at.namespace)?;
    secrets::remove(&scheduler, namespace, call.at.name, call.at.force.unwrap_or(false)).await
}

fn refused(error: SecretValueError) -> ApiError {
    let code = match error {
        SecretValueError::Empty => ErrorCode::BadRequest,
        SecretValueError::TooLarge => ErrorCode::TooLarge,
    };
    ApiError::new(code, error.to_string())
}
