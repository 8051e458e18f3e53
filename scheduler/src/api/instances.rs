//! `/v1/status` and `/v1/instances`: what runs now.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use http::StatusCode;
use rekindle_wire::api::{InstanceInfo, MigrateRequest, Migration, Status};
use rekindle_wire::{ApiError, ErrorCode, InstanceId};

use super::workers::the_worker;
use super::{Refused, bad_json, bad_path, from_store};
use crate::migration::migrate as migrate_to;
use crate::placing::pump;
use crate::state::Scheduler;

pub(super) async fn status(State(scheduler): State<Scheduler>) -> Result<Json<Status>, Refused> {
    let functions = scheduler.store.functions().await.map_err(from_store)?;
    let state = scheduler.state();
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        workers: state.fleet.worker_infos(scheduler.now()),
        functions: u32::try_from(functions.len()).unwrap_or(u32::MAX),
        instances: state.fleet.instance_infos(None, scheduler.now()),
    }))
}

pub(super) async fn list(State(scheduler): State<Scheduler>) -> Json<Vec<InstanceInfo>> {
    Json(scheduler.state().fleet.instance_infos(None, scheduler.now()))
}

/// Moves an instance to another worker, or a copy of it. Answers when it has arrived.
pub(super) async fn migrate(
    State(scheduler): State<Scheduler>,
    id: Result<Path<InstanceId>, PathRejection>,
    request: Result<Json<MigrateRequest>, JsonRejection>,
) -> Result<Json<Migration>, Refused> {
    let Path(id) = id.map_err(bad_path)?;
    let Json(request) = request.map_err(bad_json)?;
    let to = request
        .to
        .as_deref()
        .map(|name| the_worker(&scheduler, name))
        .transpose()?;
    Ok(Json(migrate_to(&scheduler, &id, to.as_ref(), &request).await?))
}

/// Stops an instance, whatever it serves.
pub(super) async fn stop(
    State(scheduler): State<Scheduler>,
    id: Result<Path<InstanceId>, PathRejection>,
) -> Result<StatusCode, Refused> {
    let Path(id) = id.map_err(bad_path)?;
    let address = scheduler.state().fleet.address_of(&id).ok_or_else(|| {
        ApiError::new(
            ErrorCode::NotFound,
            format!("no instance {id} is running: `fn status` lists them"),
        )
    })?;
    scheduler
        .workers
        .stop(&address, &id, false)
        .await
        .map_err(|e| ApiError::new(ErrorCode::Unavailable, format!("{e}: try again")))?;
    scheduler.state().fleet.forget(&id, scheduler.now());
    scheduler.recalls.notify_waiters();
    pump(&scheduler);
    Ok(StatusCode::NO_CONTENT)
}
