//! `/v1/async`: asynchronous invocations for their operator. `/internal/async/…`: gateways submit them, claim them to
//! run them, and report the outcomes.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use http::StatusCode;
use rekindle_wire::asynchronous::{
    AcceptedCall, AsyncCall, CallOutcome, CallResult, CallState, CallbackOutcome, Changed, ClaimRequest, Claims,
    NewCall, Renewal,
};
use rekindle_wire::{ApiError, CallId, ErrorCode, FunctionId};
use serde::Deserialize;

use super::{Named, Refused, bad_json, bad_path, bad_query, from_store};
use crate::async_calls;
use crate::state::{Scheduler, unix_ms};
use crate::store::Wanted;

const LISTED: u32 = 100;
const LISTED_MAX: u32 = 1_000;

type Body<T> = Result<Json<T>, JsonRejection>;
type Id = Result<Path<CallId>, PathRejection>;

pub(super) async fn accept(
    State(scheduler): State<Scheduler>,
    call: Body<NewCall>,
) -> Result<(StatusCode, Json<AcceptedCall>), Refused> {
    let Json(call) = call.map_err(bad_json)?;
    let accepted = async_calls::accept(&scheduler, call).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

pub(super) async fn claim(
    State(scheduler): State<Scheduler>,
    request: Body<ClaimRequest>,
) -> Result<Json<Claims>, Refused> {
    let Json(request) = request.map_err(bad_json)?;
    async_calls::claim(&scheduler, &request)
        .await
        .map(Json)
        .map_err(from_store)
}

pub(super) async fn renew(State(scheduler): State<Scheduler>, renewal: Body<Renewal>) -> Result<Json<()>, Refused> {
    let Json(renewal) = renewal.map_err(bad_json)?;
    async_calls::renew(&scheduler, &renewal)
        .await
        .map(Json)
        .map_err(from_store)
}

pub(super) async fn end(State(scheduler): State<Scheduler>, outcome: Body<CallOutcome>) -> Result<Json<()>, Refused> {
    let Json(outcome) = outcome.map_err(bad_json)?;
    async_calls::end(&scheduler, outcome)
        .await
        .map(Json)
        .map_err(from_store)
}

pub(super) async fn end_callback(
    State(scheduler): State<Scheduler>,
    outcome: Body<CallbackOutcome>,
) -> Result<Json<()>, Refused> {
    let Json(outcome) = outcome.map_err(bad_json)?;
    async_calls::end_callback(&scheduler, outcome)
        .await
        .map(Json)
        .map_err(from_store)
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Wait {
    #[serde(default)]
    wait_ms: u64,
}

pub(super) async fn result(
    State(scheduler): State<Scheduler>,
    id: Id,
    wait: Result<Query<Wait>, QueryRejection>,
) -> Result<Json<CallResult>, Refused> {
    let Path(id) = id.map_err(bad_path)?;
    let Query(wait) = wait.map_err(bad_query)?;
    let wait = Duration::from_millis(wait.wait_ms);
    let result = async_calls::result(&scheduler, &id, wait).await.map_err(from_store)?;
    result.map(Json).ok_or_else(|| async_calls::unknown(&id))
}

#[derive(Debug, Deserialize)]
pub(super) struct Filter {
    function: Option<FunctionId>,
    state: Option<CallState>,
    before: Option<CallId>,
    limit: Option<u32>,
}

pub(super) async fn list(
    State(scheduler): State<Scheduler>,
    filter: Result<Query<Filter>, QueryRejection>,
) -> Result<Json<Vec<AsyncCall>>, Refused> {
    let Query(filter) = filter.map_err(bad_query)?;
    let wanted = Wanted {
        function: filter.function,
        state: filter.state,
        before: filter.before,
        limit: filter.limit.unwrap_or(LISTED).min(LISTED_MAX),
    };
    scheduler.store.calls(&wanted).await.map(Json).map_err(from_store)
}

pub(super) async fn show(State(scheduler): State<Scheduler>, id: Id) -> Result<Json<AsyncCall>, Refused> {
    let Path(id) = id.map_err(bad_path)?;
    known(&scheduler, &id).await.map(Json)
}

async fn known(scheduler: &Scheduler, id: &CallId) -> Result<AsyncCall, Refused> {
    let row = scheduler.store.call(id).await.map_err(from_store)?;
    row.map(|r| r.call).ok_or_else(|| async_calls::unknown(id))
}

/// Queues a dead letter again.
pub(super) async fn retry(State(scheduler): State<Scheduler>, id: Id) -> Result<Json<AsyncCall>, Refused> {
    let Path(id) = id.map_err(bad_path)?;
    if scheduler.store.retry_call(&id, unix_ms()).await.map_err(from_store)? {
        scheduler.calls.note_queued();
        return known(&scheduler, &id).await.map(Json);
    }
    let call = known(&scheduler, &id).await?;
    Err(ApiError::new(
        ErrorCode::Conflict,
        format!(
            "{id} is {}: only dead letters are queued anew (`fn async list --state dead`)",
            call.state
        ),
    ))
}

/// Queues all dead letters of a function again.
pub(super) async fn retry_dead(
    State(scheduler): State<Scheduler>,
    Named(name): Named,
) -> Result<Json<Changed>, Refused> {
    let calls = scheduler
        .store
        .retry_dead_calls(&name, unix_ms())
        .await
        .map_err(from_store)?;
    scheduler.calls.note_queued();
    Ok(Json(Changed { calls }))
}

/// Deletes a call; a waiting one is not run any more.
pub(super) async fn remove(State(scheduler): State<Scheduler>, id: Id) -> Result<StatusCode, Refused> {
    let Path(id) = id.map_err(bad_path)?;
    if scheduler.store.remove_call(&id).await.map_err(from_store)? {
        scheduler.calls.note_queued();
        return Ok(StatusCode::NO_CONTENT);
    }
    let call = known(&scheduler, &id).await?;
    Err(ApiError::new(
        ErrorCode::Conflict,
        format!("{id} is {}: wait until the attempt is over", call.state),
    ))
}
