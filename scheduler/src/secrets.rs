//! Changes of secrets: recorded first, then applied in memory.

pub(crate) mod vault;

use rekindle_wire::api::SecretSummary;
use rekindle_wire::{ApiError, ErrorCode, Namespace, SecretName, SecretValue};

use self::vault::unknown;
use crate::clock::unix_s;
use crate::refusal::from_store;
use crate::releases::whole;
use crate::state::Scheduler;
use crate::store::StoredSecret;

/// Sets a secret, with `existing` only one that there is.
///
/// # Errors
/// If there is none of that name although there must be, or there are too many.
pub(crate) async fn set(
    scheduler: &Scheduler,
    namespace: Namespace,
    name: SecretName,
    value: SecretValue,
    existing: bool,
) -> Result<SecretSummary, ApiError> {
    let here = scheduler.clone();
    whole(scheduler, async move {
        set_now(&here, namespace, name, &value, existing).await
    })
    .await
}

async fn set_now(
    scheduler: &Scheduler,
    namespace: Namespace,
    name: SecretName,
    value: &SecretValue,
    existing: bool,
) -> Result<SecretSummary, ApiError> {
    let secrets = &scheduler.secrets;
    let order = secrets.changing.lock().await;
    secrets.check(&namespace, &name, existing)?;
    let sealed = secrets.seal(&namespace, &name, value.bytes());
    let sealed = sealed.map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
    let set_unix_s = unix_s();
    let version = scheduler.store.set_secret(&namespace, &name, &sealed, set_unix_s).await;
    let stored = StoredSecret {
        version: version.map_err(from_store)?,
        set_unix_s,
        sealed,
    };
    let summary = secrets.summary(&namespace, &name, &stored);
    tracing::info!(%namespace, %name, version = stored.version, "a secret was set");
    secrets.set(namespace, name, stored);
    drop(order);
    Ok(summary)
}

/// Removes a secret.
///
/// # Errors
/// If there is none of that name.
pub(crate) async fn remove(scheduler: &Scheduler, namespace: Namespace, name: SecretName) -> Result<(), ApiError> {
    let here = scheduler.clone();
    whole(scheduler, async move { remove_now(&here, namespace, name).await }).await
}

async fn remove_now(scheduler: &Scheduler, namespace: Namespace, name: SecretName) -> Result<(), ApiError> {
    let secrets = &scheduler.secrets;
    let order = secrets.changing.lock().await;
    let removed = scheduler.store.remove_secret(&namespace, &name).await;
    if !removed.map_err(from_store)? {
        return Err(unknown(&name));
    }
    tracing::info!(%namespace, %name, "a secret was removed");
    secrets.remove(namespace, name);
    drop(order);
    Ok(())
}
