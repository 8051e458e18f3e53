//! Asynchronous invocations. They are accepted into the database and claimed by gateways, which run them like any
//! invocation. The gateways' reports end them. A claim lasts some seconds unless it is renewed, so a dead gateway
//! releases its calls by its silence.
//!
//! `queues` counts the waiting calls of each function and shares room out among namespaces and functions. `policy`
//! decides what happens to a call after an attempt, and `owner` whose a call is. `sealing` encrypts headers that prove
//! a caller's identity. `sweep` handles events without a report. `destinations` invokes functions that are told how
//! calls ended, and `event` is what they are told. What is in memory here is a count of what the database has, and may
//! be lost.

mod accept;
mod claims;
pub(crate) mod destinations;
mod event;
mod outcomes;
mod owner;
mod policy;
pub(crate) mod progress;
mod queues;
mod sealing;
mod sweep;

use std::time::Duration;

use rekindle_wire::asynchronous::CallResult;
use rekindle_wire::{ApiError, CallId, ErrorCode};

pub(crate) use accept::{accept, accept_own};
pub(crate) use claims::{claim, renew};
pub(crate) use outcomes::{end, end_callback};
pub(crate) use sweep::run;

use sealing::Message;

use crate::state::Scheduler;
use crate::store::{StoreError, StoredCall};

/// How long a claim lasts unless it is renewed. Gateways renew every few seconds.
const CLAIM_HOLDS: Duration = Duration::from_secs(12);
/// Longest time that a request for work or for a result is kept open.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How often the database is checked for what only time has changed.
const TICK: Duration = Duration::from_millis(250);

/// The result of a call, waited for at most `wait`.
///
/// # Errors
/// The store's; `Ok(None)` if there is no such call.
pub(crate) async fn result(
    scheduler: &Scheduler,
    id: &CallId,
    wait: Duration,
) -> Result<Option<CallResult>, StoreError> {
    let until = tokio::time::Instant::now() + wait.min(WAIT_LIMIT);
    loop {
        let ended = scheduler.calls.ended.notified();
        let Some(call) = scheduler.store.call_with_answer(id).await? else {
            return Ok(None);
        };
        let now = tokio::time::Instant::now();
        if call.row.call.state.is_final() || now >= until || scheduler.calls.is_ending() {
            return Ok(Some(opened(scheduler, call)));
        }
        // Another scheduler may have been told of its end.
        let look_again = until.min(now + Duration::from_secs(1));
        drop(tokio::time::timeout_at(look_again, ended).await);
    }
}

/// The result of a call, with the secret headers of its response. Those that cannot be decrypted are left out.
fn opened(scheduler: &Scheduler, stored: StoredCall) -> CallResult {
    let sealed = stored.answer_sealed.clone();
    let mut result = stored.result();
    if let Some(answer) = &mut result.answer {
        let key = &scheduler.config.master_key;
        let put_back = sealing::unseal(key, &result.id, Message::Answer, sealed.as_deref(), &mut answer.headers);
        if let Err(error) = put_back {
            tracing::warn!(
                call = %result.id, error = &error as &dyn std::error::Error,
                "an answer is told without its cookies"
            );
        }
    }
    result
}

pub(crate) fn unknown(id: &CallId) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("no asynchronous invocation {id} is known: what came of one is kept for a day (`fn async list`)"),
    )
}
