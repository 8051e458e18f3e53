//! Invokes functions that are destinations of other functions' calls, asynchronously, with the event of the call's end.
//! The idempotency key of such a call is the end that it tells of. So a leader that is killed between queueing it and
//! noting that tells nothing twice. Events for addresses are claimed and posted by gateways.

use std::time::Duration;

use rekindle_wire::asynchronous::CallbackOutcome;
use rekindle_wire::clock::unix_ms;
use rekindle_wire::function_call::CALL_DEPTH_MAX;
use rekindle_wire::{ApiError, ErrorCode};

use super::accept::accept_own;
use super::claims::ms;
use super::event::{self, EventCall};
use super::outcomes::end_callback;
use crate::state::Scheduler;
use crate::store::{DueEvent, StoreError};

/// Longest pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an attempt may take before there is another.
const HOLDS: Duration = Duration::from_secs(5);
/// Number of calls looked at at once.
const AT_ONCE: u32 = 32;

/// Tells functions until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    loop {
        let ended = scheduler.calls.ended.notified();
        match look(&scheduler).await {
            Ok(told) if told >= AT_ONCE as usize => continue,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "functions cannot be told how calls ended; trying again"
                );
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        drop(tokio::time::timeout(LOOK_EVERY, ended).await);
    }
}

/// Tells those that are due. Returns how many those were.
async fn look(scheduler: &Scheduler) -> Result<usize, StoreError> {
    if !scheduler.calls.posts.may_exist() {
        return Ok(0);
    }
    let now = unix_ms();
    let again = now.saturating_add_unsigned(ms(HOLDS));
    let due = scheduler.store.claim_events(false, AT_ONCE, now, again).await?;
    let count = due.len();
    for one in due {
        let (id, attempt) = (one.stored.row.call.id.clone(), one.attempt);
        let ended_unix_ms = one.stored.row.call.finished_unix_ms;
        let told = tell(scheduler, one).await;
        let is_final = told.as_ref().is_err_and(|error| is_final(error.code));
        let outcome = CallbackOutcome {
            id,
            attempt,
            error: told.err().map(|error| error.to_string()),
            is_final,
            is_event: true,
            ended_unix_ms,
        };
        end_callback(scheduler, outcome).await?;
    }
    Ok(count)
}

async fn tell(scheduler: &Scheduler, due: DueEvent) -> Result<(), ApiError> {
    let EventCall { call, depth } = event::call(due)?;
    if depth > CALL_DEPTH_MAX {
        return Err(ApiError::new(
            ErrorCode::CallTooDeep,
            format!(
                "{} would be told of what it was told of, and so on {CALL_DEPTH_MAX} times: look for a circle of \
                 on_success and on_failure",
                call.function
            ),
        ));
    }
    // The event is a call by a function, whoever may deploy that one.
    if !scheduler.state().catalog.is_open_to_functions(&call.function) {
        return Err(ApiError::new(
            ErrorCode::Forbidden,
            format!(
                "{0} asks its callers for a key: set allow = [\"functions\"] in the fn.toml of {0}, so that it is told \
                 how calls of other functions ended",
                call.function
            ),
        ));
    }
    accept_own(scheduler, call).await.map(drop)
}

/// Whether another attempt would end the same way. A function may still be deployed.
fn is_final(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::CallTooDeep | ErrorCode::BadRequest | ErrorCode::TooLarge | ErrorCode::Conflict
    )
}
