//! Encryption of namespaces' snapshots.

pub(crate) mod vault;

use rekindle_wire::clock::unix_s;
use rekindle_wire::{ApiError, Namespace};

use crate::refusal::from_store;
use crate::releases::whole;
use crate::state::Scheduler;

/// Encrypts the snapshots that are made in a namespace from now on. Does nothing if they are.
///
/// # Errors
/// If there is no namespace of that name.
pub(crate) async fn encrypt(scheduler: &Scheduler, namespace: Namespace) -> Result<(), ApiError> {
    let here = scheduler.clone();
    whole(scheduler, async move { encrypt_now(&here, namespace).await }).await
}

async fn encrypt_now(scheduler: &Scheduler, namespace: Namespace) -> Result<(), ApiError> {
    // What was made before is recorded before, or not at all.
    let _recorded = scheduler.releasing.lock().await;
    // A namespace is removed under the same lock.
    let order = scheduler.keys.changing.lock().await;
    scheduler.state().catalog.check_namespace(namespace.as_str())?;
    let seals = &scheduler.seals;
    if seals.has(namespace.as_str()) {
        return Ok(());
    }
    let sealed = seals.make(&namespace)?;
    let kept = scheduler.store.add_snapshot_key(&namespace, &sealed, unix_s()).await;
    let opened = seals.open(&namespace, &kept.map_err(from_store)?);
    tracing::info!(%namespace, "snapshots of a namespace are encrypted from now on");
    seals.set(&namespace, opened);
    drop(order);
    Ok(())
}
