//! Calls of migrations; see `rekindle_wire::migration` for the table.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use http::StatusCode;
use rekindle_wire::ids::MigrationId;
use rekindle_wire::migration::{Departed, Expected, Leave, SourceOrder, Standing, TargetOrder, TargetState};
use rekindle_wire::{ApiError, ErrorCode};
use serde::Deserialize;

use crate::migration::{source, target};
use crate::worker::Worker;

/// Maximum size of a bundle: images, eager pages, and the instance's files in `/tmp` and `/dev/shm`.
const PARCEL_MAX: usize = 4 << 30;

pub(super) fn routes() -> Router<Arc<Worker>> {
    Router::new()
        .route("/departures", post(depart))
        .route("/departures/{id}", axum::routing::delete(stay))
        .route("/departures/{id}/leave", post(leave))
        .route("/departures/{id}/pages", get(pages))
        .route("/departures/{id}/pages/{number}", get(page))
        .route("/departures/{id}/done", post(done))
        .route("/arrivals", post(arrive))
        .route("/arrivals/{id}/expected", put(expect))
        .route("/arrivals/{id}", get(state).delete(give_up))
        .route(
            "/arrivals/{id}/images",
            post(images).layer(DefaultBodyLimit::max(PARCEL_MAX)),
        )
        .route("/arrivals/{id}/go", post(go))
}

async fn depart(State(worker): State<Arc<Worker>>, Json(order): Json<SourceOrder>) -> Result<StatusCode, ApiError> {
    source::prepare(&worker, order).await.map(|()| StatusCode::NO_CONTENT)
}

async fn stay(State(worker): State<Arc<Worker>>, Path(id): Path<MigrationId>) -> StatusCode {
    source::give_up(&worker, &id).await;
    StatusCode::NO_CONTENT
}

async fn leave(
    State(worker): State<Arc<Worker>>,
    Path(id): Path<MigrationId>,
    Json(order): Json<Leave>,
) -> Result<Json<Departed>, ApiError> {
    let source = worker.migration_sources.get(&id)?;
    // The caller may disconnect in the middle; the migration is completed all the same.
    let left = tokio::spawn(async move { source.leave(&worker, &order).await });
    let broke_off = |_| ApiError::new(ErrorCode::Internal, "the migration source broke off");
    left.await.map_err(broke_off)?.map(Json)
}

#[derive(Deserialize)]
struct PagesQuery {
    #[serde(default)]
    from: u64,
    to: u64,
}

async fn pages(
    State(worker): State<Arc<Worker>>,
    Path(id): Path<MigrationId>,
    Query(query): Query<PagesQuery>,
) -> Result<Body, ApiError> {
    worker.migration_sources.get(&id)?.pages(query.from..query.to)
}

async fn page(
    State(worker): State<Arc<Worker>>,
    Path((id, number)): Path<(MigrationId, u64)>,
) -> Result<Vec<u8>, ApiError> {
    worker.migration_sources.get(&id)?.block(number).await
}

async fn done(State(worker): State<Arc<Worker>>, Path(id): Path<MigrationId>) -> Result<StatusCode, ApiError> {
    worker.migration_sources.get(&id)?.done();
    Ok(StatusCode::NO_CONTENT)
}

async fn expect(
    State(worker): State<Arc<Worker>>,
    Path(id): Path<MigrationId>,
    Json(expected): Json<Expected>,
) -> Result<StatusCode, ApiError> {
    // The migration's order is still to come. It may proceed once this worker is known to a scheduler.
    super::until_known(&worker).await;
    worker
        .migration_targets
        .expect(id, expected)
        .map(|()| StatusCode::NO_CONTENT)
}

async fn arrive(State(worker): State<Arc<Worker>>, Json(order): Json<TargetOrder>) -> Result<StatusCode, ApiError> {
    target::prepare(&worker, order).await.map(|()| StatusCode::NO_CONTENT)
}

async fn state(State(worker): State<Arc<Worker>>, Path(id): Path<MigrationId>) -> Result<Json<TargetState>, ApiError> {
    Ok(Json(worker.migration_targets.get(&id)?.state()))
}

async fn give_up(State(worker): State<Arc<Worker>>, Path(id): Path<MigrationId>) -> Result<StatusCode, ApiError> {
    match worker.migration_targets.get(&id) {
        Ok(target) if !target.give_up() => Err(ApiError::new(
            ErrorCode::Conflict,
            format!("migration target {id} runs, or is being restored"),
        )),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

async fn images(
    State(worker): State<Arc<Worker>>,
    Path(id): Path<MigrationId>,
    bundle: Bytes,
) -> Result<Json<Standing>, ApiError> {
    let target = worker.migration_targets.get(&id)?;
    target.images(&worker, bundle).await.map(Json)
}

async fn go(State(worker): State<Arc<Worker>>, Path(id): Path<MigrationId>) -> Result<Json<TargetState>, ApiError> {
    let target = worker.migration_targets.get(&id)?;
    let going = tokio::spawn(async move { target.go(&worker).await });
    let broke_off = |_| ApiError::new(ErrorCode::Internal, "the migration target broke off");
    going.await.map_err(broke_off)?.map(Json)
}
