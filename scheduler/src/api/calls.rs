//! Asynchronous invocations for their operator. Gateways submit them, claim them to run them, and report
//! the outcomes.

use std::time::Duration;

use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::asynchronous::{AcceptedCall, AsyncCall, CallResult, CallState, Changed, Claims};
use rekindle_wire::clock::unix_ms;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::scheduler::{AcceptCall, ClaimCalls, EndCall, EndCallback, ReadResult, RenewCalls};
use rekindle_wire::interface::users::{ListCalls, RemoveCall, RetryCall, RetryCalls, ShowCall};
use rekindle_wire::{ApiError, CallId, ErrorCode};

use super::named;
use crate::async_calls;
use crate::audit;
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;
use crate::store::CallQuery;

const LISTED: u32 = 100;
const LISTED_MAX: u32 = 1_000;

pub(super) async fn accept(scheduler: Scheduler, call: Call<AcceptCall>) -> Result<AcceptedCall, Refused> {
    async_calls::accept(&scheduler, call.body).await
}

pub(super) async fn claim(scheduler: Scheduler, call: Call<ClaimCalls>) -> Result<Claims, Refused> {
    async_calls::claim(&scheduler, &call.body).await.map_err(from_store)
}

pub(super) async fn renew(scheduler: Scheduler, call: Call<RenewCalls>) -> Result<(), Refused> {
    async_calls::renew(&scheduler, &call.body).await.map_err(from_store)
}

pub(super) async fn end(scheduler: Scheduler, call: Call<EndCall>) -> Result<(), Refused> {
    async_calls::end(&scheduler, call.body).await.map_err(from_store)
}

pub(super) async fn end_callback(scheduler: Scheduler, call: Call<EndCallback>) -> Result<(), Refused> {
    async_calls::end_callback(&scheduler, call.body)
        .await
        .map_err(from_store)
}

pub(super) async fn result(scheduler: Scheduler, call: Call<ReadResult>) -> Result<CallResult, Refused> {
    let ReadResult { id, wait_ms } = call.at;
    let wait = Duration::from_millis(wait_ms.unwrap_or(0));
    let result = async_calls::result(&scheduler, &id, wait).await.map_err(from_store)?;
    result.ok_or_else(|| async_calls::unknown(&id))
}

pub(super) async fn list(scheduler: Scheduler, call: Call<ListCalls>) -> Result<Vec<AsyncCall>, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    caller.check_role(AccessRole::Reader)?;
    let widest = || caller.widest(AccessRole::Reader).cloned().unwrap_or(Scope::Platform);
    let scope = call.at.function.map_or_else(widest, Scope::Function);
    caller.check(AccessRole::Reader, &scope)?;
    let wanted = CallQuery {
        scope: Some(scope),
        state: call.at.state,
        before: call.at.before,
        limit: call.at.limit.unwrap_or(LISTED).min(LISTED_MAX),
    };
    scheduler.store.calls(&wanted).await.map_err(from_store)
}

pub(super) async fn show(scheduler: Scheduler, call: Call<ShowCall>) -> Result<AsyncCall, Refused> {
    let caller = Caller::of(&call.head.headers)?;
    reached(&scheduler, &call.at.id, &caller, AccessRole::Reader).await
}

/// A call of a function where the caller has the role. Elsewhere none is told to be.
async fn reached(scheduler: &Scheduler, id: &CallId, caller: &Caller, role: AccessRole) -> Result<AsyncCall, Refused> {
    caller.check_role(role)?;
    let call = known(scheduler, id).await?;
    let scope = Scope::Function(call.function.clone());
    match caller.has(role, &scope) {
        true => {
            audit::charge(scheduler, caller, role, &scope)?;
            let (_, namespace) = call.function.split();
            audit::note(Some(&namespace.unwrap_or_default()), id.to_string());
            Ok(call)
        }
        false => Err(async_calls::unknown(id)),
    }
}

async fn known(scheduler: &Scheduler, id: &CallId) -> Result<AsyncCall, Refused> {
    let row = scheduler.store.call(id).await.map_err(from_store)?;
    row.map(|r| r.call).ok_or_else(|| async_calls::unknown(id))
}

/// Queues a dead letter again.
pub(super) async fn retry(scheduler: Scheduler, call: Call<RetryCall>) -> Result<AsyncCall, Refused> {
    let id = call.at.id;
    let caller = Caller::of(&call.head.headers)?;
    reached(&scheduler, &id, &caller, AccessRole::Deployer).await?;
    if scheduler.store.retry_call(&id, unix_ms()).await.map_err(from_store)? {
        scheduler.calls.note_queued();
        return known(&scheduler, &id).await;
    }
    let call = known(&scheduler, &id).await?;
    let message = match call.state {
        CallState::Dead => format!(
            "{id} was sent to a function {} that has been deleted, and goes to no other: send the request again",
            call.function
        ),
        other => format!("{id} is {other}: only dead letters are queued anew (`fn async list --state dead`)"),
    };
    Err(ApiError::new(ErrorCode::Conflict, message))
}

/// Queues all dead letters of a function again.
pub(super) async fn retry_dead(scheduler: Scheduler, call: Call<RetryCalls>) -> Result<Changed, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let calls = scheduler
        .store
        .retry_dead_calls(&name, unix_ms())
        .await
        .map_err(from_store)?;
    scheduler.calls.note_queued();
    Ok(Changed { calls })
}

/// Deletes a call; a waiting one is not run any more.
pub(super) async fn remove(scheduler: Scheduler, call: Call<RemoveCall>) -> Result<(), Refused> {
    let id = call.at.id;
    let caller = Caller::of(&call.head.headers)?;
    reached(&scheduler, &id, &caller, AccessRole::Deployer).await?;
    if scheduler.store.remove_call(&id).await.map_err(from_store)? {
        scheduler.calls.note_queued();
        return Ok(());
    }
    let call = known(&scheduler, &id).await?;
    Err(ApiError::new(
        ErrorCode::Conflict,
        format!("{id} is {}: wait until the attempt is over", call.state),
    ))
}
