//! Which runtime snapshot versions begin as.

use rekindle_wire::FunctionId;
use rekindle_wire::function_config::Base;
use rekindle_wire::internal::RuntimeSnapshot;

use crate::state::Scheduler;
use crate::store::StoreError;

/// The runtime snapshot that a version of this function begins as, if there is one.
pub(crate) async fn runtime_snapshot(
    scheduler: &Scheduler,
    function: &FunctionId,
    runtime: Base,
) -> Option<RuntimeSnapshot> {
    let sharers = scheduler.config.sharing.sharers(function)?;
    let unread = |error: &StoreError| {
        let error = error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "which snapshot of its runtime a version begins as could not be read"
        );
    };
    let known = scheduler.store.runtime_snapshot(runtime, sharers).await;
    known.inspect_err(unread).ok().flatten()
}

/// Stores which runtime snapshot the version began as.
pub(crate) async fn keep_runtime_snapshot(
    scheduler: &Scheduler,
    function: &FunctionId,
    runtime: Base,
    named: &RuntimeSnapshot,
) {
    let Some(sharers) = scheduler.config.sharing.sharers(function) else {
        return;
    };
    if let Err(error) = scheduler.store.keep_runtime_snapshot(runtime, sharers, named).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "which snapshot of its runtime versions begin as could not be kept"
        );
    }
}
