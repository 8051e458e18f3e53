//! Handles events without a report: dead gateways, calls that are too old, results kept long enough. It also refreshes
//! the counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rekindle_wire::asynchronous::CallState;
use rekindle_wire::clock::unix_ms;
use rekindle_wire::{ApiError, ErrorCode, FunctionId};

use super::CLAIM_HOLDS;
use super::claims::ms;
use super::outcomes::count_post;
use crate::state::Scheduler;
use crate::store::{CallNotification, StoreError};

/// Interval between two sweeps, while there is something to do and while there is not.
const BUSY: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(5);
/// How long a sweep may take, or by how much the clock may be set meanwhile, before claims are extended.
const STALL: Duration = Duration::from_secs(5);
/// Interval between two checks of what is kept.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// How long a response is kept.
const DONE_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long a dead letter is kept.
const DEAD_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum bytes of a function's responses, and of its dead letters.
const KEPT_EACH: i64 = 64 << 20;
/// Maximum bytes over all functions.
const KEPT_ALL: i64 = 512 << 20;

/// Runs until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    // Gateways could not report their calls while there was no scheduler, or while it stood still.
    let mut renewed = false;
    let mut forgotten: Option<Instant> = None;
    loop {
        let since = unix_ms();
        let swept = async {
            if !renewed {
                let until = unix_ms().saturating_add_unsigned(ms(CLAIM_HOLDS));
                scheduler.store.renew_all_calls(until).await?;
                scheduler.calls.posts.note();
                renewed = true;
            }
            let there_is_work = sweep(&scheduler).await?;
            if forgotten.is_none_or(|at| at.elapsed() >= FORGET_EVERY) {
                forget(&scheduler).await?;
                forgotten = Some(Instant::now());
            }
            Ok::<_, StoreError>(there_is_work)
        };
        let pause = match swept.await {
            Ok(true) => BUSY,
            Ok(false) => IDLE,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "asynchronous invocations cannot be looked after"
                );
                BUSY
            }
        };
        if pause < IDLE {
            tokio::time::sleep(pause).await;
        } else {
            drop(tokio::time::timeout(pause, scheduler.calls.work.notified()).await);
        }
        if is_out_of_step(since, unix_ms(), pause) {
            tracing::warn!(
                "the scheduler stood still, or its clock was set: claims of asynchronous invocations are extended"
            );
            renewed = false;
        }
    }
}

/// Whether claims may have run out, or hold for too long, by the clock alone. A sweep and a pause of at most `pause`
/// took from `since` to `until`, Unix time in ms.
fn is_out_of_step(since: i64, until: i64, pause: Duration) -> bool {
    let most = pause.saturating_add(STALL).as_millis();
    u128::try_from(until.saturating_sub(since)).map_or(true, |passed| passed > most)
}

/// Sweeps once. Returns whether anything waits or runs.
async fn sweep(scheduler: &Scheduler) -> Result<bool, StoreError> {
    // Before the database is waited for: no claim ends while it is.
    let now = unix_ms();
    let changes = scheduler.calls.queues().changes();
    let counted = scheduler.store.call_queues().await?;
    let (mut waiting, mut running) = (false, false);
    for (_, due) in &counted {
        waiting |= due.queued > 0;
        running |= due.running > 0;
    }
    scheduler.calls.queues().replace(counted, changes);
    let metrics = &scheduler.metrics.async_calls;
    if running {
        let lost = scheduler.store.release_lost_calls(now).await?;
        for function in &lost {
            tracing::warn!(%function, "the gateway that ran an asynchronous invocation is silent: it is queued anew");
            metrics.attempted(function.as_str(), "lost");
            scheduler.calls.queues().waits_again(function);
        }
        waiting |= !lost.is_empty();
    }
    if waiting {
        let error = ApiError::new(
            ErrorCode::Expired,
            "it was not answered within its maximum age: raise max_age under [async] in fn.toml, or max_instances",
        );
        let expired = scheduler.store.expire_calls(now, &error).await?;
        for function in &expired {
            tracing::warn!(%function, "an asynchronous invocation is given up, as it is too old");
            metrics.dead(function.as_str(), ErrorCode::Expired.as_str());
        }
        if !expired.is_empty() {
            scheduler.calls.posts.note();
            scheduler.calls.ended.notify_waiters();
        }
        scheduler.calls.work.notify_waiters();
    }
    let noted = scheduler.calls.posts.noted();
    if !scheduler.store.has_posts().await? {
        scheduler.calls.posts.none_found(noted);
    } else if noted == 0 {
        scheduler.calls.posts.note();
        scheduler.calls.ended.notify_waiters();
        scheduler.calls.work.notify_waiters();
    }
    Ok(waiting || running)
}

/// Notes of whose ends nobody will be told any more.
fn note_untold(scheduler: &Scheduler, untold: &[(FunctionId, CallNotification)]) {
    let mut counts: BTreeMap<&FunctionId, u64> = BTreeMap::new();
    for (function, post) in untold {
        *counts.entry(function).or_default() += 1;
        count_post(scheduler, *post, "dropped");
    }
    for (function, calls) in counts {
        tracing::warn!(
            %function, calls,
            "nobody will be told how asynchronous invocations ended: there was no more room to keep them, or they were \
             too old; see to whatever refuses to be told, or send less"
        );
    }
}

async fn forget(scheduler: &Scheduler) -> Result<(), StoreError> {
    let now = unix_ms();
    for (state, kept) in [(CallState::Done, DONE_KEPT), (CallState::Dead, DEAD_KEPT)] {
        let before = now.saturating_sub_unsigned(ms(kept));
        let forgotten = scheduler
            .store
            .forget_calls(state.as_str(), before, KEPT_EACH, KEPT_ALL)
            .await?;
        if forgotten.calls > 0 {
            tracing::debug!(%state, forgotten = forgotten.calls, "what came of asynchronous invocations is forgotten");
        }
        note_untold(scheduler, &forgotten.untold);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_was_too_long_or_went_back_in_time_is_noticed() {
        let is_out = |passed| is_out_of_step(1_000_000, 1_000_000 + passed, BUSY);
        assert!([0, 500, 5_500].iter().all(|passed| !is_out(*passed)));
        assert!(
            [5_501, 60_000, i64::MAX - 1_000_000, -1]
                .iter()
                .all(|passed| is_out(*passed))
        );
    }
}
