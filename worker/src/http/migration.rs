//! Operations of migrations.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use rekindle_wire::interface::worker as operations;
use rekindle_wire::interface::{Call, Params, Routes};
use rekindle_wire::migration::{Departed, TargetState};
use rekindle_wire::{ApiError, ErrorCode};

use crate::worker::Worker;

pub(super) fn routes(others: Routes<Arc<Worker>>) -> Routes<Arc<Worker>> {
    others
        .on(depart)
        .on(stay)
        .on(leave)
        .raw::<operations::ReadPages, _, _>(pages)
        .raw::<operations::ReadPage, _, _>(page)
        .on(done)
        .on(arrive)
        .on(expect)
        .on(state)
        .on(give_up)
        .raw::<operations::SendImages, _, _>(images)
        .on(go)
}

async fn depart(worker: Arc<Worker>, call: Call<operations::PrepareDeparture>) -> Result<(), ApiError> {
    worker.migration_sources.prepare(call.body).await
}

async fn stay(worker: Arc<Worker>, call: Call<operations::CancelDeparture>) -> Result<(), ApiError> {
    worker.migration_sources.give_up(&call.at.id).await;
    Ok(())
}

async fn leave(worker: Arc<Worker>, call: Call<operations::Leave>) -> Result<Departed, ApiError> {
    let source = worker.migration_sources.get(&call.at.id)?;
    // The caller may disconnect in the middle; the migration is completed all the same.
    let left = tokio::spawn(async move { worker.migration_sources.leave(&source, &call.body).await });
    let broke_off = |_| ApiError::new(ErrorCode::Internal, "the migration source broke off");
    left.await.map_err(broke_off)?
}

async fn pages(
    State(worker): State<Arc<Worker>>,
    Params(wanted): Params<operations::ReadPages>,
) -> Result<Body, ApiError> {
    let source = worker.migration_sources.get(&wanted.id)?;
    source.pages(wanted.from.unwrap_or(0)..wanted.to)
}

async fn page(
    State(worker): State<Arc<Worker>>,
    Params(wanted): Params<operations::ReadPage>,
) -> Result<Vec<u8>, ApiError> {
    worker.migration_sources.get(&wanted.id)?.block(wanted.number).await
}

async fn done(worker: Arc<Worker>, call: Call<operations::EndDeparture>) -> Result<(), ApiError> {
    worker.migration_sources.get(&call.at.id)?.done();
    Ok(())
}

async fn expect(worker: Arc<Worker>, call: Call<operations::ExpectArrival>) -> Result<(), ApiError> {
    // The migration's order is still to come. It may proceed once this worker is known to a scheduler.
    super::until_known(&worker).await;
    super::hold_key(&worker, &call.body.spec.function, call.body.snapshot_key.as_ref());
    worker.migration_targets.expect(call.at.id, call.body)
}

async fn arrive(worker: Arc<Worker>, call: Call<operations::PrepareArrival>) -> Result<(), ApiError> {
    worker.migration_targets.prepare(call.body).await
}

async fn state(worker: Arc<Worker>, call: Call<operations::ReadArrival>) -> Result<TargetState, ApiError> {
    Ok(worker.migration_targets.get(&call.at.id)?.state())
}

async fn give_up(worker: Arc<Worker>, call: Call<operations::CancelArrival>) -> Result<(), ApiError> {
    let id = call.at.id;
    match worker.migration_targets.get(&id) {
        Ok(target) if !target.give_up() => Err(ApiError::new(
            ErrorCode::Conflict,
            format!("migration target {id} runs, or is being restored"),
        )),
        _ => Ok(()),
    }
}

async fn images(
    State(worker): State<Arc<Worker>>,
    Params(wanted): Params<operations::SendImages>,
    bundle: Body,
) -> Result<Response, ApiError> {
    let target = worker.migration_targets.get(&wanted.id)?;
    // The source may disconnect in the middle. The target's state must follow.
    let restoring = tokio::spawn(async move { target.images(bundle).await });
    let broke_off = |_| ApiError::new(ErrorCode::Internal, "the migration target broke off");
    let standing = restoring.await.map_err(broke_off)??;
    Ok(Json(standing).into_response())
}

async fn go(worker: Arc<Worker>, call: Call<operations::Arrive>) -> Result<TargetState, ApiError> {
    let target = worker.migration_targets.get(&call.at.id)?;
    let going = tokio::spawn(async move { target.go().await });
    let broke_off = |_| ApiError::new(ErrorCode::Internal, "the migration target broke off");
    going.await.map_err(broke_off)?
}
