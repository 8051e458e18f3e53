//! What keys and rules of access have in common: who may give a role away, where, and for how long.

use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::api::KEY_LIFE_MAX_S;
use rekindle_wire::{ApiError, ErrorCode};

use crate::audit;
use crate::state::Scheduler;

/// Shortest life of what has an expiry, in seconds.
const LIFE_MIN_S: u64 = 60;

/// Checks that the caller may give a role away in this scope, whose namespace exists.
pub(super) fn may_give(scheduler: &Scheduler, caller: &Caller, scope: &Scope) -> Result<(), ApiError> {
    // Where it is for: who is an admin elsewhere gives nothing away that somebody gave it here.
    caller.check(AccessRole::Admin, scope)?;
    audit::charge(scheduler, caller, AccessRole::Admin, scope)?;
    match scope.namespace() {
        Some(namespace) => scheduler.state().catalog.check_namespace(namespace.as_str()),
        None => Ok(()),
    }
}

/// Checks how long `what` is to live.
pub(super) fn check_life(what: &str, expires_s: Option<u64>) -> Result<(), ApiError> {
    match expires_s {
        Some(life) if !(LIFE_MIN_S..=KEY_LIFE_MAX_S).contains(&life) => Err(ApiError::new(
            ErrorCode::BadRequest,
            format!(
                "{what} lives {LIFE_MIN_S} seconds to ten years, not {life} seconds: change expires_s, or leave it out"
            ),
        )),
        _ => Ok(()),
    }
}

/// When it ends: no later than the key or the rule that lets the caller give it.
pub(super) fn end(
    scheduler: &Scheduler,
    caller: &Caller,
    scope: &Scope,
    created_unix_s: i64,
    expires_s: Option<u64>,
) -> Result<Option<i64>, ApiError> {
    let life = expires_s.and_then(|life| i64::try_from(life).ok());
    let asked_end = life.map(|life| created_unix_s.saturating_add(life));
    let own_end = scheduler
        .keys
        .recheck(caller, AccessRole::Admin, scope, created_unix_s)?;
    Ok(asked_end.into_iter().chain(own_end).min())
}
