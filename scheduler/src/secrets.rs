//! Changes of secrets: recorded first, then applied in memory.

pub(crate) mod vault;

use rekindle_wire::api::SecretSummary;
use rekindle_wire::clock::unix_s;
use rekindle_wire::internal::Heartbeat;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, Namespace, SecretName, SecretValue};

use self::vault::unknown;
use crate::catalog::ClaimedVersion;
use crate::refusal::from_store;
use crate::releases::whole;
use crate::state::Scheduler;
use crate::store::StoredSecret;

/// A namespace's secrets, by name.
pub(crate) fn list(scheduler: &Scheduler, namespace: &Namespace) -> Vec<SecretSummary> {
    let mut all = scheduler.secrets.list(namespace);
    for secret in &mut all {
        secret.used_by = users(scheduler, namespace, &secret.name);
    }
    all
}

/// The functions with a version that serves and names the secret.
fn users(scheduler: &Scheduler, namespace: &Namespace, name: &SecretName) -> Vec<FunctionId> {
    let state = scheduler.state();
    let own = state.catalog.names().filter(|f| f.namespace() == namespace.as_str());
    let names_it = |function: &&FunctionId| {
        let mut versions = state.catalog.all_live(function);
        versions.any(|live| live.spec.config.secrets.contains(name))
    };
    own.filter(names_it).cloned().collect()
}

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
    let summary = SecretSummary {
        used_by: users(scheduler, &namespace, &name),
        ..secrets.summary(&namespace, &name, &stored)
    };
    tracing::info!(%namespace, %name, version = stored.version, "a secret was set");
    secrets.set(namespace, name, stored);
    drop(order);
    Ok(summary)
}

/// Removes a secret, with `force` one that a version needs.
///
/// # Errors
/// If there is none of that name, or a version that serves names it.
pub(crate) async fn remove(
    scheduler: &Scheduler,
    namespace: Namespace,
    name: SecretName,
    force: bool,
) -> Result<(), ApiError> {
    let here = scheduler.clone();
    whole(
        scheduler,
        async move { remove_now(&here, namespace, name, force).await },
    )
    .await
}

async fn remove_now(
    scheduler: &Scheduler,
    namespace: Namespace,
    name: SecretName,
    force: bool,
) -> Result<(), ApiError> {
    let secrets = &scheduler.secrets;
    let order = secrets.changing.lock().await;
    if let Some(user) = users(scheduler, &namespace, &name).first().filter(|_| !force) {
        let message = format!(
            "{user} needs the secret {name}: deploy it without, or remove the secret with --force, after which no \
             instance of it starts"
        );
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let removed = scheduler.store.remove_secret(&namespace, &name).await;
    if !removed.map_err(from_store)? {
        return Err(unknown(&name));
    }
    tracing::info!(%namespace, %name, "a secret was removed");
    secrets.remove(namespace, name);
    drop(order);
    Ok(())
}

/// Gives the instances of a worker other secrets, if they have not those that are set.
pub(crate) fn follow(scheduler: &Scheduler, beat: &Heartbeat) {
    for info in &beat.instances {
        let Some(has) = beat.secrets.get(&info.id) else {
            continue;
        };
        let known = {
            let state = scheduler.state();
            // A worker could name any function.
            if !state.fleet.is_ordered(&beat.worker, info) {
                continue;
            }
            state.catalog.known(&info.function, info.version)
        };
        let (ClaimedVersion::Live(version) | ClaimedVersion::Older(version)) = known else {
            continue;
        };
        let config = &version.spec.config;
        if scheduler.secrets.revision(&info.function, config) == *has {
            continue;
        }
        let Ok(secrets) = scheduler.secrets.of_those_set(&info.function, config) else {
            continue;
        };
        if !scheduler.secrets.changing_in.lock().insert(info.id.clone()) {
            continue;
        }
        let (here, id, address) = (scheduler.clone(), info.id.clone(), beat.address.clone());
        scheduler.tasks.spawn(async move {
            match here.workers.set_secrets(&address, &id, &secrets).await {
                Ok(()) => tracing::info!(instance = %id, "an instance has other secrets"),
                // The next heartbeat shows whether it still lacks them.
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(instance = %id, error, "an instance could not be given other secrets");
                }
            }
            here.secrets.changing_in.lock().remove(&id);
        });
    }
}
