//! Processes the outcomes that gateways report of calls and callbacks.

use rekindle_wire::CallId;
use rekindle_wire::asynchronous::{AttemptOutcome, CallOutcome, CallbackOutcome};
use rekindle_wire::clock::unix_ms;

use super::policy;
use super::sealing::{self, Message};
use crate::state::Scheduler;
use crate::store::{CallDisposition, CallNotification, StoreError};

/// Records the end of an attempt. A report of any but the call's latest attempt changes nothing.
pub(crate) async fn end(scheduler: &Scheduler, outcome: CallOutcome) -> Result<(), StoreError> {
    let CallOutcome { id, attempt, what } = outcome;
    let Some(row) = scheduler.store.call(&id).await? else {
        return Ok(());
    };
    let is_answer = matches!(what, AttemptOutcome::Answered(_));
    let is_released = matches!(what, AttemptOutcome::Released);
    let now = unix_ms();
    let mut ended = policy::judge(&row, what, now, rand::random());
    let sealed = seal(scheduler, &id, &mut ended);
    if !scheduler
        .store
        .end_call(&id, attempt, &ended, sealed.as_deref(), now)
        .await?
    {
        return Ok(());
    }
    let function = &row.call.function;
    let metrics = &scheduler.metrics.async_calls;
    metrics.attempted(
        function.as_str(),
        match &ended {
            CallDisposition::Done { .. } => "answered",
            CallDisposition::Again { .. } if is_released => "released",
            CallDisposition::Again { counts: false, .. } => "unreached",
            CallDisposition::Again { .. } | CallDisposition::Dead { .. } if is_answer => "answered_5xx",
            CallDisposition::Again { .. } | CallDisposition::Dead { .. } => "failed",
        },
    );
    match ended {
        CallDisposition::Again { .. } => scheduler.calls.queues().waits_again(function),
        CallDisposition::Done { .. } | CallDisposition::Dead { .. } => {
            scheduler.calls.queues().ended(function, row.call.bytes)
        }
    }
    match ended {
        // Nothing has ended. The signal below serves a waiter for the room just made.
        CallDisposition::Again { .. } => {}
        CallDisposition::Done { .. } | CallDisposition::Dead { .. } => {
            let took = std::time::Duration::from_millis(now.abs_diff(row.call.accepted_unix_ms));
            let is_dead = matches!(ended, CallDisposition::Dead { .. });
            metrics.finished(function.as_str(), if is_dead { "dead" } else { "done" }, took);
            if let CallDisposition::Dead { error, .. } = &ended {
                tracing::warn!(
                    %function, call = %id, %error, attempts = row.call.attempts,
                    "an asynchronous invocation is given up"
                );
                metrics.dead(function.as_str(), error.code.as_str());
            }
            if row.call.callback.is_some() || row.has_destination {
                scheduler.calls.posts.note();
            }
            scheduler.calls.ended.notify_waiters();
        }
    }
    scheduler.calls.work.notify_waiters();
    Ok(())
}

/// Takes the secret headers out of a response to be kept. If no random numbers are available, the headers are dropped:
/// the response matters more.
fn seal(scheduler: &Scheduler, id: &CallId, ended: &mut CallDisposition) -> Option<Vec<u8>> {
    let (CallDisposition::Done { answer }
    | CallDisposition::Dead {
        answer: Some(answer), ..
    }) = ended
    else {
        return None;
    };
    let sealed = sealing::seal(&scheduler.config.master_key, id, Message::Answer, &mut answer.headers);
    sealed.unwrap_or_else(|error| {
        tracing::warn!(call = %id, %error, "an answer is kept without its cookies");
        None
    })
}

/// Records the end of an attempt at a callback, or at telling a destination.
pub(crate) async fn end_callback(scheduler: &Scheduler, outcome: CallbackOutcome) -> Result<(), StoreError> {
    let CallbackOutcome {
        id,
        attempt,
        error,
        is_final,
        is_event,
        ended_unix_ms,
    } = outcome;
    let post = if is_event {
        CallNotification::Event
    } else {
        CallNotification::Callback
    };
    let again = match &error {
        Some(_) if !is_final => policy::post_again(post, attempt, unix_ms(), rand::random()),
        _ => None,
    };
    let noted = scheduler
        .store
        .end_post(post, &id, (attempt, ended_unix_ms), again, error.as_deref())
        .await?;
    if noted {
        let outcome = match (&error, again) {
            (None, _) => "delivered",
            (Some(_), Some(_)) => "again",
            (Some(error), None) => {
                tracing::warn!(call = %id, error, is_event, "nobody is told how a call ended: it is given up");
                "failed"
            }
        };
        count_post(scheduler, post, outcome);
    }
    Ok(())
}

/// Counts what became of telling somebody.
pub(super) fn count_post(scheduler: &Scheduler, post: CallNotification, outcome: &'static str) {
    let metrics = &scheduler.metrics.async_calls;
    match post {
        CallNotification::Callback => metrics.called_back(outcome),
        CallNotification::Event => metrics.told(outcome),
    }
}
