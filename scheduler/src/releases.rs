//! Changes which version serves: recorded first, then applied in memory. Nothing is built and no request fails.
//! Invocations in flight end where they are, and the next one begins on the version that the alias names.

use rekindle_wire::api::{Alias, Rollback};
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, VersionNumber};

use crate::placing::pump;
use crate::refusal::{from_store, unknown_function};
use crate::state::Scheduler;
use crate::store::NotNamed;

/// Has a version serve again that served before, by default the last one.
///
/// # Errors
/// If there is no such version, or it serves already, or cannot serve.
pub(crate) async fn roll_back(
    scheduler: &Scheduler,
    function: &FunctionId,
    to: Option<VersionNumber>,
) -> Result<Rollback, ApiError> {
    let order = scheduler.releasing.lock().await;
    let done = scheduler.store.roll_back(function, to).await.map_err(from_store)?;
    let done = done.map_err(|why| refused(scheduler, function, &why))?;
    apply(scheduler, function, Alias::of(AliasName::live(), done.to));
    drop(order);
    let live = scheduler.state().catalog.live(function);
    tracing::info!(%function, version = %done.to, "a function was rolled back");
    Ok(Rollback {
        from: done.from,
        to: done.to,
        restored: live.is_some_and(|live| live.spec.snapshot.is_some()),
    })
}

/// Has an alias name these versions, and no others.
///
/// # Errors
/// If there is no such function or version, or one cannot serve.
pub(crate) async fn set(scheduler: &Scheduler, function: &FunctionId, alias: Alias) -> Result<(), ApiError> {
    let _order = scheduler.releasing.lock().await;
    let done = scheduler.store.set_alias(function, &alias).await.map_err(from_store)?;
    done.map_err(|why| refused(scheduler, function, &why))?;
    apply(scheduler, function, alias);
    Ok(())
}

/// Applies a recorded alias in memory.
pub(crate) fn apply(scheduler: &Scheduler, function: &FunctionId, alias: Alias) {
    {
        let mut state = scheduler.state();
        let state = &mut *state;
        state.catalog.set_alias(function, alias);
        let catalog = &state.catalog;
        state
            .fleet
            .switch(function, |version| catalog.is_named(function, version));
    }
    scheduler.recalls.notify_waiters();
    pump(scheduler);
}

/// The error for what an alias cannot name.
fn refused(scheduler: &Scheduler, function: &FunctionId, why: &NotNamed) -> ApiError {
    let keep = scheduler.config.collecting.keep_versions;
    let error = |code, text: String| ApiError::new(code, text);
    match why {
        NotNamed::NoFunction => unknown_function(function),
        NotNamed::NoVersion {
            version,
            was_there: true,
        } => error(
            ErrorCode::NotFound,
            format!(
                "version {version} of {function} was removed with its snapshot, since only the last {keep} are kept \
                 (--keep-versions): deploy its folder again, or use one of `fn versions {function}`"
            ),
        ),
        NotNamed::NoVersion { version, .. } => error(
            ErrorCode::NotFound,
            format!("{function} has no version {version}: `fn versions {function}` lists them"),
        ),
        NotNamed::CannotServe { version, state } => error(
            ErrorCode::Conflict,
            format!(
                "version {version} of {function} cannot serve, it is {state}: `fn versions {function}` lists others"
            ),
        ),
        NotNamed::Serves(version) => error(
            ErrorCode::Conflict,
            format!("version {version} of {function} is live already: `fn versions {function}` lists others"),
        ),
        NotNamed::NothingBefore => error(
            ErrorCode::NotFound,
            format!(
                "no version of {function} that is kept served before: `fn versions {function}` lists what is there"
            ),
        ),
    }
}
