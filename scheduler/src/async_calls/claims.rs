//! Handing calls and callbacks to gateways.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rekindle_wire::FunctionName;
use rekindle_wire::asynchronous::{CLAIM_MAX, ClaimRequest, ClaimedCallback, Claims, Renewal};

use super::{CLAIM_HOLDS, TICK, WAIT_LIMIT};
use crate::state::{Scheduler, unix_ms};
use crate::store::StoreError;

/// How long nothing may be heard of a callback before it is posted again; a gateway gives up earlier.
const CALLBACK_HOLDS: Duration = Duration::from_secs(60);
/// Calls of a function at once of which no version is live: they learn so.
const UNKNOWN_AT_ONCE: u64 = 16;

/// Work for a gateway, waited for as long as it wants to.
pub(crate) async fn claim(scheduler: &Scheduler, request: &ClaimRequest) -> Result<Claims, StoreError> {
    let until = tokio::time::Instant::now() + Duration::from_millis(request.wait_ms).min(WAIT_LIMIT);
    loop {
        // Listening before looking: what comes in between is not missed.
        let work = scheduler.calls.work.notified();
        tokio::pin!(work);
        work.as_mut().enable();
        let claims = take(scheduler, request).await?;
        let now = tokio::time::Instant::now();
        if !claims.calls.is_empty() || !claims.callbacks.is_empty() || now >= until || scheduler.calls.is_ending() {
            return Ok(claims);
        }
        let (waiting, _) = scheduler.calls.queues().has_work();
        let for_later = waiting || scheduler.calls.callbacks.load(Ordering::Relaxed);
        let look_again = if for_later { until.min(now + TICK) } else { until };
        drop(tokio::time::timeout_at(look_again, work).await);
    }
}

async fn take(scheduler: &Scheduler, request: &ClaimRequest) -> Result<Claims, StoreError> {
    let _alone = scheduler.calls.claiming.lock().await;
    let (now, now_unix_ms) = (scheduler.now(), unix_ms());
    let shares = {
        let memory = scheduler.memory();
        let at_once = |name: &FunctionName| match memory.catalog.live(name) {
            Some(live) => u64::from(live.spec.manifest.max_instances) * u64::from(live.spec.manifest.concurrency),
            None => UNKNOWN_AT_ONCE,
        };
        let room = request.room.min(CLAIM_MAX);
        scheduler.calls.queues().share(room, now, at_once)
    };
    let mut claims = Claims::default();
    let holder = request.gateway.as_str();
    for (function, wanted) in shares {
        let held_until = now_unix_ms.saturating_add_unsigned(ms(CLAIM_HOLDS));
        let store = &scheduler.store;
        let calls = store
            .claim_calls(&function, wanted, holder, now_unix_ms, held_until)
            .await?;
        let mut queues = scheduler.calls.queues();
        queues.claimed(&function, calls.len() as u64, wanted, now);
        claims.calls.extend(calls);
    }
    if request.callbacks > 0 && scheduler.calls.callbacks.load(Ordering::Relaxed) {
        let again = now_unix_ms.saturating_add_unsigned(ms(CALLBACK_HOLDS));
        let due = scheduler
            .store
            .claim_callbacks(request.callbacks.min(CLAIM_MAX), now_unix_ms, again)
            .await?;
        claims.callbacks = due
            .into_iter()
            .filter_map(|stored| {
                let callback = stored.row.call.callback.clone()?;
                Some(ClaimedCallback {
                    url: callback.url,
                    attempt: callback.attempts,
                    request_id: stored.row.call.request_id.clone(),
                    result: stored.result(),
                })
            })
            .collect();
    }
    Ok(claims)
}

/// A gateway still runs calls.
pub(crate) async fn renew(scheduler: &Scheduler, renewal: &Renewal) -> Result<(), StoreError> {
    let until = unix_ms().saturating_add_unsigned(ms(CLAIM_HOLDS));
    scheduler
        .store
        .renew_calls(renewal.gateway.as_str(), &renewal.held, until)
        .await
}

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
