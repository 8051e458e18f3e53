//! Hands calls and callbacks to gateways.

use std::time::Duration;

use rekindle_wire::asynchronous::{CLAIM_MAX, ClaimRequest, ClaimedCall, ClaimedCallback, Claims, Renewal};
use rekindle_wire::clock::unix_ms;
use rekindle_wire::{ApiError, ErrorCode, FunctionId};

use super::sealing::{self, Message};
use super::{CLAIM_HOLDS, TICK, WAIT_LIMIT, event};
use crate::state::Scheduler;
use crate::store::{CallDisposition, SealedClaim, StoreError};

/// Time without news of a callback before it is posted again; a gateway gives up earlier.
const CALLBACK_HOLDS: Duration = Duration::from_secs(60);
/// Number of calls claimed at once for a function without a live version, so that they learn that.
const UNKNOWN_AT_ONCE: u64 = 16;

/// Work for a gateway. Waits as long as the gateway asks.
pub(crate) async fn claim(scheduler: &Scheduler, request: &ClaimRequest) -> Result<Claims, StoreError> {
    let until = tokio::time::Instant::now() + Duration::from_millis(request.wait_ms).min(WAIT_LIMIT);
    loop {
        // Subscribe before the check: what arrives in between is not missed.
        let work = scheduler.calls.work.notified();
        tokio::pin!(work);
        work.as_mut().enable();
        let claims = take(scheduler, request).await?;
        let now = tokio::time::Instant::now();
        if !claims.calls.is_empty() || !claims.callbacks.is_empty() || now >= until || scheduler.calls.is_ending() {
            return Ok(claims);
        }
        let (waiting, _) = scheduler.calls.queues().has_work();
        let for_later = waiting || scheduler.calls.posts.may_exist();
        let look_again = if for_later { until.min(now + TICK) } else { until };
        drop(tokio::time::timeout_at(look_again, work).await);
    }
}

async fn take(scheduler: &Scheduler, request: &ClaimRequest) -> Result<Claims, StoreError> {
    let _alone = scheduler.calls.claiming.lock().await;
    let (now, now_unix_ms) = (scheduler.now(), unix_ms());
    let shares = {
        let state = scheduler.state();
        let mut queues = scheduler.calls.queues();
        let most = queues.most_of_one(&request.gateway, request.places, now);
        let at_once = |name: &FunctionId| match state.catalog.live(name) {
            Some(live) => {
                let config = &live.spec.config;
                most.min(u64::from(config.max_instances) * u64::from(config.concurrency))
            }
            None => UNKNOWN_AT_ONCE,
        };
        let room = request.room.min(CLAIM_MAX);
        queues.share(room, now, at_once)
    };
    let mut claims = Claims::default();
    let holder = request.gateway.as_str();
    for (function, wanted) in shares {
        let held_until = now_unix_ms.saturating_add_unsigned(ms(CLAIM_HOLDS));
        let store = &scheduler.store;
        let calls = store
            .claim_calls(&function, wanted, holder, now_unix_ms, held_until)
            .await?;
        scheduler
            .calls
            .queues()
            .claimed(&function, calls.len() as u64, wanted, now);
        for claimed in calls {
            if let Some(call) = whole(scheduler, claimed, now_unix_ms).await? {
                claims.calls.push(call);
            }
        }
    }
    if request.callbacks > 0 && scheduler.calls.posts.may_exist() {
        let again = now_unix_ms.saturating_add_unsigned(ms(CALLBACK_HOLDS));
        let due = scheduler
            .store
            .claim_callbacks(request.callbacks.min(CLAIM_MAX), now_unix_ms, again)
            .await?;
        claims.callbacks = due
            .into_iter()
            .filter_map(|stored| {
                let callback = stored.row.call.callback.clone()?;
                let ended_unix_ms = stored.row.call.finished_unix_ms;
                Some(ClaimedCallback {
                    url: callback.url,
                    attempt: callback.attempts,
                    request_id: stored.row.call.request_id.clone(),
                    result: super::opened(scheduler, stored),
                    event: None,
                    ended_unix_ms,
                })
            })
            .collect();
        if request.events {
            let room = request.callbacks.min(CLAIM_MAX);
            let left = room.saturating_sub(u32::try_from(claims.callbacks.len()).unwrap_or(room));
            let due = scheduler.store.claim_events(true, left, now_unix_ms, again).await?;
            claims.callbacks.extend(due.into_iter().map(event::posted));
        }
    }
    Ok(claims)
}

/// A call with the secret headers of its request. If the headers cannot be decrypted, the call is given up: without
/// them it would be a different request.
async fn whole(
    scheduler: &Scheduler,
    claimed: SealedClaim,
    now_unix_ms: i64,
) -> Result<Option<ClaimedCall>, StoreError> {
    let SealedClaim {
        mut call,
        request_sealed,
    } = claimed;
    if unsealed(scheduler, &mut call, request_sealed.as_deref()) {
        return Ok(Some(call));
    }
    let why = "its Authorization and Cookie headers cannot be decrypted: put the master key back that the scheduler \
        had, then `fn async retry`";
    let ended = CallDisposition::Dead {
        answer: None,
        error: ApiError::new(ErrorCode::Internal, why),
    };
    let done = scheduler
        .store
        .end_call(&call.id, call.attempt, &ended, None, now_unix_ms)
        .await?;
    if done {
        let metrics = &scheduler.metrics.async_calls;
        metrics.dead(call.function.as_str(), ErrorCode::Internal.as_str());
        scheduler.calls.queues().ended(&call.function, call.body.0.len() as u64);
        scheduler.calls.ended.notify_waiters();
    }
    Ok(None)
}

/// Puts the secret headers back, if they can be decrypted.
fn unsealed(scheduler: &Scheduler, call: &mut ClaimedCall, sealed: Option<&[u8]>) -> bool {
    let (key, headers) = (&scheduler.config.master_key, &mut call.request.headers);
    let opened = sealing::unseal(key, &call.id, Message::Request, sealed, headers);
    if let Err(error) = &opened {
        let error = error as &dyn std::error::Error;
        tracing::warn!(
            call = %call.id, function = %call.function, error,
            "an asynchronous invocation is given up, as its credentials cannot be read"
        );
    }
    opened.is_ok()
}

/// Renews the claims of a gateway on the calls it still runs.
pub(crate) async fn renew(scheduler: &Scheduler, renewal: &Renewal) -> Result<(), StoreError> {
    let until = unix_ms().saturating_add_unsigned(ms(CLAIM_HOLDS));
    scheduler.calls.queues().renewed(&renewal.gateway, scheduler.now());
    scheduler
        .store
        .renew_calls(renewal.gateway.as_str(), &renewal.held, until)
        .await
}

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
