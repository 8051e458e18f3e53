//! Accepts calls.

use rekindle_wire::asynchronous::{AcceptedCall, BODY_MAX, KEY_MAX, NewCall};
use rekindle_wire::clock::unix_ms;
use rekindle_wire::function_config::{ByteSize, check_callback};
use rekindle_wire::{ApiError, CallId, ErrorCode};

use super::owner::owner;
use super::queues::{QueueFull, Sender};
use super::sealing::{self, Message};
use crate::refusal::{Refused, from_store};
use crate::state::Scheduler;
use crate::store::NewRow;

/// Stores a call that came through a gateway. It is durable once this returns.
///
/// # Errors
/// - `namespace_not_found`, `function_not_found`, `too_large`, `bad_request`
/// - `throttled` if its queue is full, `quota_exceeded` if its namespace's backlog is
/// - `conflict` if its idempotency key was that of another request of the same owner
pub(crate) async fn accept(scheduler: &Scheduler, new: NewCall) -> Result<AcceptedCall, Refused> {
    accept_of(scheduler, new, Sender::Client).await
}

/// Stores a call that the scheduler makes. There is room for it that clients cannot take.
///
/// # Errors
/// As [`accept`].
pub(crate) async fn accept_own(scheduler: &Scheduler, new: NewCall) -> Result<AcceptedCall, Refused> {
    accept_of(scheduler, new, Sender::Platform).await
}

async fn accept_of(scheduler: &Scheduler, mut new: NewCall, sender: Sender) -> Result<AcceptedCall, Refused> {
    check(&new)?;
    let live = {
        let catalog = &scheduler.state().catalog;
        let live = catalog.live(&new.function);
        live.ok_or_else(|| catalog.missing(&new.function))?
    };
    let policy = &live.spec.config.asynchronous;
    let now = unix_ms();
    let (owner, digest) = (owner(&new), digest(&new));
    let id = new.id.take().unwrap_or_else(CallId::generate);
    let key = &scheduler.config.master_key;
    let request_sealed = sealing::seal(key, &id, Message::Request, &mut new.request.headers)
        .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
    let row = NewRow {
        id,
        function: new.function,
        idempotency_key: new.idempotency_key,
        owner,
        digest,
        accepted_unix_ms: now,
        expires_unix_ms: now.saturating_add_unsigned(policy.max_age_ms),
        max_attempts: policy.max_attempts,
        request: serde_json::to_string(&new.request)
            .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("the request cannot be kept: {e}")))?,
        request_sealed,
        body: new.body.0.into(),
        callback: new.callback.or_else(|| policy.callback.clone()),
        on_success: policy.on_success.clone(),
        on_failure: policy.on_failure.clone(),
    };
    let limits = *scheduler.state().fleet.quotas.of(row.function.namespace()).0;
    let admitted = {
        let queues = scheduler.calls.queues();
        let admitted = queues.admit(&row.function, row.bytes(), sender);
        admitted.and_then(|()| queues.admit_to(&row.function, &limits))
    };
    let earlier = match admitted {
        Ok(()) => scheduler.store.add_call(&row).await.map_err(from_store)?,
        // A repeated call may be among those that fill the queue.
        Err(full) => match scheduler.store.earlier_call(&row).await {
            Ok(Some(earlier)) => Some(earlier),
            Ok(None) | Err(_) => return Err(refused(&row, full)),
        },
    };
    let (id, known) = match earlier {
        None => {
            scheduler.calls.queues().added(&row.function, row.bytes(), now);
            scheduler.metrics.async_calls.accepted(row.function.as_str());
            scheduler.calls.work.notify_waiters();
            (row.id, false)
        }
        // The gateway repeated the same id. Its client does not know about that.
        Some(earlier) if earlier.digest == row.digest => {
            let known = earlier.id != row.id;
            (earlier.id, known)
        }
        // Only callers with a key get here: without one, a different request has a different owner.
        Some(earlier) => {
            return Err(ApiError::new(
                ErrorCode::Conflict,
                format!(
                    "this idempotency key was that of another request of yours, accepted as {}: use a new one for a \
                     new request",
                    earlier.id
                ),
            ));
        }
    };
    Ok(AcceptedCall {
        result: format!("/async-results/{id}"),
        id,
        known,
    })
}

fn check(new: &NewCall) -> Result<(), ApiError> {
    if new.body.0.len() > BODY_MAX {
        return Err(ApiError::new(
            ErrorCode::TooLarge,
            format!("an asynchronous invocation's body has at most {BODY_MAX} bytes: pass a reference to the data"),
        ));
    }
    let refuse = |why: String| Err(ApiError::new(ErrorCode::BadRequest, why));
    if let Some(key) = &new.idempotency_key
        && (key.is_empty() || key.len() > KEY_MAX || !key.bytes().all(|b| b.is_ascii_graphic()))
    {
        return refuse(format!("an idempotency key is 1 to {KEY_MAX} visible ASCII characters"));
    }
    match new.callback.as_deref().map(check_callback) {
        Some(Err(why)) => refuse(why),
        _ => Ok(()),
    }
}

/// Digest of what a call asks for. Its headers are left out: a caller with the same key may send others.
fn digest(new: &NewCall) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [&*new.request.method, &new.request.path, new.request.invocation.as_str()] {
        hasher.update(part.as_bytes()).update(b"\0");
    }
    hasher.update(&new.body.0);
    hasher.finalize().to_hex().to_string()
}

fn refused(row: &NewRow, full: QueueFull) -> ApiError {
    let function = &row.function;
    ApiError::new(
        ErrorCode::Throttled,
        match full {
            QueueFull::Quota(over) => return over.error(function.namespace(), Some(1)),
            QueueFull::Function(limit) => {
                format!(
                    "{limit} asynchronous invocations of {function} wait already: send less, or raise max_instances in \
                     fn.toml"
                )
            }
            QueueFull::Bytes(limit) => format!(
                "{} of asynchronous invocations of {function} wait already: send less, pass references to data, or \
                 raise max_instances in fn.toml",
                ByteSize(limit)
            ),
            QueueFull::Namespace => format!(
                "asynchronous invocations of namespace {} take as much room as one may have beside what is free: wait \
                 until some have run, send less, or raise max_instances of the functions that have the most",
                function.namespace()
            ),
            QueueFull::All => "as many asynchronous invocations wait as the platform keeps: try again later".to_owned(),
        },
    )
}
