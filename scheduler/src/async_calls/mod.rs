//! Asynchronous invocations: accepted into the database, claimed by gateways, which run them as they run any invocation, and ended by what
//! gateways tell. A claim holds for some seconds and is renewed; a gateway that is gone lets go of its calls by its silence.
//!
//! `queues` says how many of which function wait, and shares gateways' room out among functions; `policy` says what becomes of a call after
//! an attempt; `owner` whose a call is; `sealing` encrypts what proves who its caller is; `sweep` looks after what nobody tells of. What is in memory here is a count of what the database has, and may be lost.

mod accept;
mod claims;
mod outcomes;
mod owner;
mod policy;
mod queues;
mod sealing;
mod sweep;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rekindle_wire::asynchronous::CallResult;
use rekindle_wire::{ApiError, CallId, ErrorCode};
use tokio::sync::Notify;

pub(crate) use accept::accept;
pub(crate) use claims::{claim, renew};
pub(crate) use outcomes::{end, end_callback};
pub(crate) use queues::Queues;
pub(crate) use sweep::run;

use sealing::Message;

use crate::state::Scheduler;
use crate::store::{StoreError, Stored};

/// How long a claim holds unless it is renewed. Gateways renew every few seconds.
const CLAIM_HOLDS: Duration = Duration::from_secs(12);
/// The longest that an ask for work or for a result is kept open.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How often is looked at the database for what only time has changed.
const TICK: Duration = Duration::from_millis(250);

/// What the parts share.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    queues: Mutex<Queues>,
    /// One claim at a time: each shall see what the one before has taken.
    claiming: tokio::sync::Mutex<()>,
    /// There may be callbacks to post.
    callbacks: AtomicBool,
    /// Something can be claimed.
    work: Notify,
    /// A call has ended.
    ended: Notify,
    /// Nothing is waited for any more.
    ending: AtomicBool,
}

impl Calls {
    /// The counts. Never hold them across an await.
    pub(crate) fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    /// The scheduler ends: who waits is answered now.
    pub(crate) fn end_waits(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.work.notify_waiters();
        self.ended.notify_waiters();
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Work was added by another way than by its acceptance.
    pub(crate) fn note_queued(&self) {
        self.queues.lock().note_unknown();
        self.work.notify_waiters();
    }
}

/// What came of a call, waited for at most `wait`.
///
/// # Errors
/// The store's; `Ok(None)` when there is no such call.
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

/// What came of a call, with the secret headers of its answer. Those that cannot be opened are left out.
fn opened(scheduler: &Scheduler, stored: Stored) -> CallResult {
    let sealed = stored.answer_sealed.clone();
    let mut result = stored.result();
    if let Some(answer) = &mut result.answer {
        let key = &scheduler.config.master_key;
        let put_back = sealing::unseal(key, &result.id, Message::Answer, sealed.as_deref(), &mut answer.headers);
        if let Err(error) = put_back {
            tracing::warn!(call = %result.id, error = &error as &dyn std::error::Error, "an answer is told without its cookies");
        }
    }
    result
}

/// For a call that is not known.
pub(crate) fn unknown(id: &CallId) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("no asynchronous invocation {id} is known: what came of one is kept for a day (`fn async list`)"),
    )
}
