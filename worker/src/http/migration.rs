//! Operations of migrations.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use rekindle_wire::interface::worker as operations;
use rekindle_wire::interface::{Call, Params, Routes};
use rekindle_wire::migration::{MigrationPhases, TargetState};
use rekindle_wire::{ApiError, ErrorCode};

use crate::worker::Worker;

pub(super) fn routes(others: Routes<Arc<Worker>>) -> Routes<Arc<Worker>> {
    others
        .on(prepare_source)
        .on(cancel_source)
        .on(perform)
        .raw::<operations::ReadPages, _, _>(read_pages)
        .raw::<operations::ReadPage, _, _>(read_page)
        .on(end_source)
        .on(prepare_target)
        .on(expect_target)
        .on(read_target)
        .on(cancel_target)
        .raw::<operations::SendImages, _, _>(send_images)
        .on(resume_target)
}

async fn prepare_source(worker: Arc<Worker>, call: Call<operations::PrepareSource>) -> Result<(), ApiError> {
    worker.migration_sources.prepare(call.body).await
}

async fn cancel_source(worker: Arc<Worker>, call: Call<operations::CancelSource>) -> Result<(), ApiError> {
    worker.migration_sources.cancel(&call.at.id).await;
    Ok(())
}

async fn perform(worker: Arc<Worker>, call: Call<operations::PerformMigration>) -> Result<MigrationPhases, ApiError> {
    let source = worker.migration_sources.get(&call.at.id)?;
    // The caller may disconnect in the middle; the migration is completed all the same.
    let left = tokio::spawn(async move { worker.migration_sources.perform(&source, &call.body).await });
    let lost = |_| ApiError::new(ErrorCode::Internal, "the migration source ended early");
    left.await.map_err(lost)?
}

async fn read_pages(
    State(worker): State<Arc<Worker>>,
    Params(wanted): Params<operations::ReadPages>,
) -> Result<Body, ApiError> {
    let source = worker.migration_sources.get(&wanted.id)?;
    source.pages(wanted.from.unwrap_or(0)..wanted.to)
}

async fn read_page(
    State(worker): State<Arc<Worker>>,
    Params(wanted): Params<operations::ReadPage>,
) -> Result<Vec<u8>, ApiError> {
    worker.migration_sources.get(&wanted.id)?.block(wanted.number).await
}

async fn end_source(worker: Arc<Worker>, call: Call<operations::EndSource>) -> Result<(), ApiError> {
    worker.migration_sources.get(&call.at.id)?.done();
    Ok(())
}

async fn expect_target(worker: Arc<Worker>, call: Call<operations::ExpectTarget>) -> Result<(), ApiError> {
    // The migration's order is still to come. It may proceed once this worker is known to a scheduler.
    super::until_known(&worker).await;
    super::hold_key(&worker, &call.body.spec.function, call.body.snapshot_key.as_ref());
    worker.migration_targets.expect(call.at.id, call.body)
}

async fn prepare_target(worker: Arc<Worker>, call: Call<operations::PrepareTarget>) -> Result<(), ApiError> {
    worker.migration_targets.prepare(call.body).await
}

async fn read_target(worker: Arc<Worker>, call: Call<operations::ReadTarget>) -> Result<TargetState, ApiError> {
    Ok(worker.migration_targets.get(&call.at.id)?.state())
}

async fn cancel_target(worker: Arc<Worker>, call: Call<operations::CancelTarget>) -> Result<(), ApiError> {
    let id = call.at.id;
    match worker.migration_targets.get(&id) {
        Ok(target) if !target.cancel() => Err(ApiError::new(
            ErrorCode::Conflict,
            format!("migration target {id} runs, or is being restored"),
        )),
        _ => Ok(()),
    }
}

async fn send_images(
    State(worker): State<Arc<Worker>>,
    Params(wanted): Params<operations::SendImages>,
    bundle: Body,
) -> Result<Response, ApiError> {
    let target = worker.migration_targets.get(&wanted.id)?;
    // The source may disconnect in the middle. The target's state must follow.
    let restoring = tokio::spawn(async move { target.images(bundle).await });
    let lost = |_| ApiError::new(ErrorCode::Internal, "the migration target ended early");
    let standing = restoring.await.map_err(lost)??;
    Ok(Json(standing).into_response())
}

async fn resume_target(worker: Arc<Worker>, call: Call<operations::ResumeTarget>) -> Result<TargetState, ApiError> {
    let target = worker.migration_targets.get(&call.at.id)?;
    let going = tokio::spawn(async move { target.resume().await });
    let lost = |_| ApiError::new(ErrorCode::Internal, "the migration target ended early");
    going.await.map_err(lost)?
}
