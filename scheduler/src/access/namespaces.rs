//! Makes, lists and removes namespaces.

use std::collections::BTreeMap;

use rekindle_wire::access::Caller;
use rekindle_wire::api::NamespaceSummary;
use rekindle_wire::clock::unix_s;
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use super::keys::publish;
use crate::refusal::from_store;
use crate::releases::whole;
use crate::state::Scheduler;

/// Maximum number of namespaces.
const NAMESPACES_MAX: usize = 1_000;

/// The namespaces that the caller's scope meets, by name.
///
/// # Errors
/// If the database fails.
pub(crate) async fn list(scheduler: &Scheduler, caller: &Caller) -> Result<Vec<NamespaceSummary>, ApiError> {
    let functions = scheduler.store.functions().await.map_err(from_store)?;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for (function, _) in &functions {
        *counts.entry(function.namespace()).or_default() += 1;
    }
    let state = scheduler.state();
    let met = state.catalog.namespaces().iter().filter(|name| caller.meets(name));
    let summaries = met.map(|name| NamespaceSummary {
        name: name.clone(),
        functions: counts.get(name.as_str()).copied().unwrap_or(0),
        encrypted: scheduler.seals.has(name.as_str()),
    });
    Ok(summaries.collect())
}

/// Makes a namespace, unless there is one of that name.
///
/// # Errors
/// If there are too many.
pub(crate) async fn make(scheduler: &Scheduler, namespace: Namespace) -> Result<(), ApiError> {
    let here = scheduler.clone();
    whole(scheduler, async move { make_now(&here, namespace).await }).await
}

async fn make_now(scheduler: &Scheduler, namespace: Namespace) -> Result<(), ApiError> {
    let order = scheduler.keys.changing.lock().await;
    {
        let state = scheduler.state();
        let all = state.catalog.namespaces();
        if all.contains(&namespace) {
            return Ok(());
        }
        if all.len() >= NAMESPACES_MAX {
            let message = format!("there are {NAMESPACES_MAX} namespaces already: remove one with `fn namespace rm`");
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
    }
    let added = scheduler.store.add_namespace(&namespace, unix_s()).await;
    added.map_err(from_store)?;
    tracing::info!(%namespace, "a namespace was made");
    scheduler.state().catalog.add_namespace(namespace);
    drop(order);
    Ok(())
}

/// Removes an empty namespace, revokes its keys, removes its rules of access, and destroys the key of its snapshots.
///
/// # Errors
/// If there is none of that name, or it has functions or secrets, or it is the default one.
pub(crate) async fn remove(scheduler: &Scheduler, namespace: Namespace) -> Result<(), ApiError> {
    let here = scheduler.clone();
    whole(scheduler, async move { remove_now(&here, namespace).await }).await
}

async fn remove_now(scheduler: &Scheduler, namespace: Namespace) -> Result<(), ApiError> {
    let order = scheduler.keys.changing.lock().await;
    scheduler.state().catalog.check_namespace(namespace.as_str())?;
    let stays = |why: &str| {
        let message = format!("the namespace {namespace} stays: {why}");
        Err(ApiError::new(ErrorCode::Conflict, message))
    };
    if namespace == Namespace::default() {
        return stays("it is the default one");
    }
    if !scheduler.secrets.list(&namespace).is_empty() {
        return stays("it has secrets, remove them with `fn secret rm`");
    }
    let all = scheduler.keys.all();
    let own = all.into_iter().filter(|key| key.namespace.as_ref() == Some(&namespace));
    let keys: Vec<_> = own.map(|key| key.id).collect();
    let rules = scheduler.keys.rules().into_iter();
    let rules: Vec<_> = rules
        .filter(|rule| rule.namespace.as_ref() == Some(&namespace))
        .map(|rule| rule.id)
        .collect();
    let removed = scheduler.store.remove_namespace(&namespace, &keys, &rules).await;
    if !removed.map_err(from_store)? {
        return stays("it has functions, remove them with `fn delete`");
    }
    tracing::info!(%namespace, keys = keys.len(), "a namespace was removed");
    {
        let mut state = scheduler.state();
        state.catalog.remove_namespace(&namespace);
        state.fleet.quotas.set(&namespace, None);
    }
    scheduler.seals.forget(&namespace);
    scheduler.metrics.forget_namespace(namespace.as_str());
    if !keys.is_empty() || !rules.is_empty() {
        scheduler.keys.remove(&keys);
        let revision = scheduler.keys.remove_rules(&rules);
        publish(scheduler, revision).await;
    }
    drop(order);
    Ok(())
}
