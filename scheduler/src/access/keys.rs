//! Makes, lists and revokes keys of the API.

use rekindle_wire::access::{AccessRole, Caller, KeyId, Scope, generate};
use rekindle_wire::api::{KEY_NAME_MAX, KeySummary, NewKey, NewKeyRequest, RevokedKey};
use rekindle_wire::clock::unix_s;
use rekindle_wire::{ApiError, ErrorCode};

use super::grants;
use crate::clock::Millis;
use crate::refusal::from_store;
use crate::releases::whole;
use crate::state::Scheduler;
use crate::store::StoredKey;

/// How long after a lead has begun every gateway has asked it: a question is open for 5 s, and given up 5 s later.
const ALL_HEARD: Millis = Millis(11_000);

/// The keys within the caller's scope, the newest first.
pub(crate) fn list(scheduler: &Scheduler, caller: &Caller) -> Vec<KeySummary> {
    let mut all = scheduler.keys.all();
    all.retain(|key| caller.has(AccessRole::Admin, &scope(key)));
    all
}

fn scope(key: &KeySummary) -> Scope {
    Scope::of(key.namespace.clone(), key.function.as_ref())
}

/// Makes a key, which every gateway that answers within a second then takes.
///
/// # Errors
/// If the caller may not give that role away, or the key cannot be as asked for.
pub(crate) async fn create(scheduler: &Scheduler, caller: Caller, asked: NewKeyRequest) -> Result<NewKey, ApiError> {
    check(&asked)?;
    let scope = Scope::of(asked.namespace.clone(), asked.function.as_ref());
    grants::may_give(scheduler, &caller, &scope)?;
    let here = scheduler.clone();
    whole(
        scheduler,
        async move { create_now(&here, &caller, asked, &scope).await },
    )
    .await
}

fn check(asked: &NewKeyRequest) -> Result<(), ApiError> {
    if asked.name.chars().count() > KEY_NAME_MAX || asked.name.chars().any(char::is_control) {
        let message = format!("a key's name has at most {KEY_NAME_MAX} visible characters");
        return Err(ApiError::new(ErrorCode::BadRequest, message));
    }
    grants::check_life("a key", asked.expires_s)
}

async fn create_now(
    scheduler: &Scheduler,
    caller: &Caller,
    asked: NewKeyRequest,
    scope: &Scope,
) -> Result<NewKey, ApiError> {
    let order = scheduler.keys.changing.lock().await;
    scheduler.keys.check_room(scope.namespace().as_ref())?;
    let (id, key) = generate();
    let created_unix_s = unix_s();
    let expires_unix_s = grants::end(scheduler, caller, scope, created_unix_s, asked.expires_s)?;
    let summary = KeySummary {
        id,
        name: asked.name,
        role: asked.role,
        namespace: scope.namespace(),
        function: scope.function(),
        created_by: caller.name().to_owned(),
        created_unix_s,
        expires_unix_s,
        used_unix_s: None,
    };
    let stored = StoredKey {
        hash: blake3::hash(key.as_bytes()),
        summary: summary.clone(),
    };
    scheduler.store.add_key(&stored).await.map_err(from_store)?;
    let revision = scheduler.keys.add(stored);
    tracing::info!(key = %summary.id, role = %summary.role, %scope, by = caller.name(), "a key was made");
    publish(scheduler, revision).await;
    drop(order);
    Ok(NewKey { key, summary })
}

/// Revokes a key.
///
/// # Errors
/// If there is none of that id within the caller's scope.
pub(crate) async fn revoke(scheduler: &Scheduler, caller: Caller, id: KeyId) -> Result<RevokedKey, ApiError> {
    let here = scheduler.clone();
    whole(scheduler, async move { revoke_now(&here, &caller, id).await }).await
}

async fn revoke_now(scheduler: &Scheduler, caller: &Caller, id: KeyId) -> Result<RevokedKey, ApiError> {
    let order = scheduler.keys.changing.lock().await;
    let unknown = || {
        ApiError::new(
            ErrorCode::NotFound,
            format!("no key {id}: `fn key list` shows those there are"),
        )
    };
    if !list(scheduler, caller).iter().any(|key| key.id == id) {
        return Err(unknown());
    }
    let ids = [id.clone()];
    scheduler.store.remove_keys(&ids).await.map_err(from_store)?;
    let revision = scheduler.keys.remove(&ids);
    tracing::info!(key = %id, by = caller.name(), "a key was revoked");
    let everywhere = publish(scheduler, revision).await;
    drop(order);
    Ok(RevokedKey { id, everywhere })
}

/// Tells the gateways of a change, and waits until all of them apply it, for a second at most. Returns whether they do.
/// A lead that has just begun does not know which gateways there are.
pub(super) async fn publish(scheduler: &Scheduler, revision: u64) -> bool {
    let everywhere = scheduler.keys.followed.publish(revision, || scheduler.now()).await;
    if !everywhere {
        tracing::warn!("a gateway does not follow a change of keys within a second");
    }
    everywhere && scheduler.now() >= ALL_HEARD
}
