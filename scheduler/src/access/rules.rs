//! Adds, lists and removes rules of access.

use rekindle_wire::access::{AccessRole, Caller, RuleId, Scope};
use rekindle_wire::api::{AccessRule, NewRuleRequest, RemovedRule};
use rekindle_wire::clock::unix_s;
use rekindle_wire::{ApiError, ErrorCode};

use super::grants;
use super::keys::publish;
use crate::refusal::from_store;
use crate::releases::whole;
use crate::state::Scheduler;

/// The rules within the caller's scope, the newest first.
pub(crate) fn list(scheduler: &Scheduler, caller: &Caller) -> Vec<AccessRule> {
    let mut all = scheduler.keys.rules();
    all.retain(|rule| caller.has(AccessRole::Admin, &rule.scope()));
    all
}

/// Adds a rule, which every gateway that answers within a second then applies.
///
/// # Errors
/// If the caller may not give that role away, or the rule cannot be as asked for.
pub(crate) async fn add(scheduler: &Scheduler, caller: Caller, asked: NewRuleRequest) -> Result<AccessRule, ApiError> {
    check(&asked)?;
    let scope = Scope::of(asked.namespace.clone(), asked.function.as_ref());
    grants::may_give(scheduler, &caller, &scope)?;
    let here = scheduler.clone();
    whole(scheduler, async move { add_now(&here, &caller, asked, &scope).await }).await
}

fn check(asked: &NewRuleRequest) -> Result<(), ApiError> {
    let bad = |message: String| ApiError::new(ErrorCode::BadRequest, message);
    asked.admits.check().map_err(bad)?;
    grants::check_life("a rule", asked.expires_s)
}

async fn add_now(
    scheduler: &Scheduler,
    caller: &Caller,
    asked: NewRuleRequest,
    scope: &Scope,
) -> Result<AccessRule, ApiError> {
    let order = scheduler.keys.changing.lock().await;
    scheduler.keys.check_room_for_rule(scope.namespace().as_ref())?;
    let created_unix_s = unix_s();
    let expires_unix_s = grants::end(scheduler, caller, scope, created_unix_s, asked.expires_s)?;
    let rule = AccessRule {
        id: RuleId::generate(),
        admits: asked.admits,
        role: asked.role,
        namespace: scope.namespace(),
        function: scope.function(),
        created_by: caller.name().to_owned(),
        created_unix_s,
        expires_unix_s,
    };
    scheduler.store.add_access_rule(&rule).await.map_err(from_store)?;
    let revision = scheduler.keys.add_rule(rule.clone());
    let AccessRule { id, role, admits, .. } = &rule;
    tracing::info!(rule = %id, %role, %scope, %admits, by = caller.name(), "a rule of access was added");
    publish(scheduler, revision).await;
    drop(order);
    Ok(rule)
}

/// Removes a rule.
///
/// # Errors
/// If there is none of that id within the caller's scope.
pub(crate) async fn remove(scheduler: &Scheduler, caller: Caller, id: RuleId) -> Result<RemovedRule, ApiError> {
    let here = scheduler.clone();
    whole(scheduler, async move { remove_now(&here, &caller, id).await }).await
}

async fn remove_now(scheduler: &Scheduler, caller: &Caller, id: RuleId) -> Result<RemovedRule, ApiError> {
    let order = scheduler.keys.changing.lock().await;
    if !list(scheduler, caller).iter().any(|rule| rule.id == id) {
        return Err(ApiError::new(
            ErrorCode::NotFound,
            format!("no rule {id}: `fn access list` shows those there are"),
        ));
    }
    scheduler.store.remove_access_rule(&id).await.map_err(from_store)?;
    let revision = scheduler.keys.remove_rules(std::slice::from_ref(&id));
    tracing::info!(rule = %id, by = caller.name(), "a rule of access was removed");
    let everywhere = publish(scheduler, revision).await;
    drop(order);
    Ok(RemovedRule { id, everywhere })
}
