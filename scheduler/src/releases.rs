//! Changes which version serves: recorded first, then applied in memory. Nothing is built and no request fails.
//! Invocations in flight end where they are, and the next one begins on the version that the alias names.

use rekindle_wire::api::{Alias, AliasTarget, CanaryState, Rollback, TARGETS_MAX, WEIGHT_MAX};
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, VersionNumber};

use crate::catalog::ClaimedVersion;
use crate::placing::pump;
use crate::refusal::{from_store, unknown_function};
use crate::state::Scheduler;
use crate::store::AliasError;

/// Maximum number of a function's aliases.
const ALIASES_MAX: usize = 32;

/// Has a version serve again that served before, by default the last one.
///
/// # Errors
/// If there is no such version, or it serves already, or cannot serve.
pub(crate) async fn roll_back(
    scheduler: &Scheduler,
    function: &FunctionId,
    to: Option<VersionNumber>,
) -> Result<Rollback, ApiError> {
    let (here, function) = (scheduler.clone(), function.clone());
    whole(scheduler, async move { roll_back_now(&here, &function, to).await }).await
}

/// Runs a change to its end, though its client leaves: what is recorded must be applied.
pub(crate) async fn whole<T: Send + 'static>(
    scheduler: &Scheduler,
    change: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    let interrupted = |_| {
        ApiError::new(
            ErrorCode::Internal,
            "the change was interrupted: check whether it took effect",
        )
    };
    scheduler.tasks.spawn(change).await.map_err(interrupted)?
}

async fn roll_back_now(
    scheduler: &Scheduler,
    function: &FunctionId,
    to: Option<VersionNumber>,
) -> Result<Rollback, ApiError> {
    let order = scheduler.releasing.lock().await;
    // None that it needs goes meanwhile.
    let _secrets = scheduler.secrets.changing.lock().await;
    let refuses = |version| lacks_secret(scheduler, function, version);
    let done = scheduler.store.roll_back(function, to, refuses).await;
    let done = done.map_err(from_store)?;
    let done = done.map_err(|why| refused(scheduler, function, &why))?;
    apply(scheduler, function, Alias::of(AliasName::live(), done.to)).await;
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
/// If the versions cannot share an alias, there is no such function or version, or one cannot serve.
pub(crate) async fn set(scheduler: &Scheduler, function: &FunctionId, alias: Alias) -> Result<Alias, ApiError> {
    let (here, function) = (scheduler.clone(), function.clone());
    whole(scheduler, async move { set_now(&here, &function, alias).await }).await
}

pub(crate) async fn set_now(scheduler: &Scheduler, function: &FunctionId, mut alias: Alias) -> Result<Alias, ApiError> {
    alias.targets.sort_by_key(|target| target.version);
    check_targets(&alias.targets)?;
    let order = scheduler.releasing.lock().await;
    {
        let state = scheduler.state();
        let names: Vec<_> = state.catalog.aliases(function).map(|alias| &alias.name).collect();
        if names.len() >= ALIASES_MAX && !names.contains(&&alias.name) {
            let message = format!("{function} has {ALIASES_MAX} aliases already: remove one with `fn alias rm`");
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
    }
    let _secrets = scheduler.secrets.changing.lock().await;
    let new = alias.targets.iter().map(|target| target.version);
    let new: Vec<_> = new
        .filter(|version| !is_named_by(scheduler, function, &alias.name, *version))
        .collect();
    if let Some(why) = new
        .into_iter()
        .find_map(|version| lacks_secret(scheduler, function, version))
    {
        return Err(why);
    }
    let done = scheduler.store.set_alias(function, &alias).await.map_err(from_store)?;
    done.map_err(|why| refused(scheduler, function, &why))?;
    apply(scheduler, function, alias.clone()).await;
    drop(order);
    Ok(alias)
}

/// Removes an alias.
///
/// # Errors
/// If there is none of that name, or it is `live`.
pub(crate) async fn remove(scheduler: &Scheduler, function: &FunctionId, name: AliasName) -> Result<(), ApiError> {
    let (here, function) = (scheduler.clone(), function.clone());
    whole(scheduler, async move { remove_now(&here, &function, &name).await }).await
}

async fn remove_now(scheduler: &Scheduler, function: &FunctionId, name: &AliasName) -> Result<(), ApiError> {
    if name.is_live() {
        let message = format!("the alias live of {function} stays: set it to another version, or delete the function");
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let order = scheduler.releasing.lock().await;
    if !scheduler.store.remove_alias(function, name).await.map_err(from_store)? {
        let message = format!("{function} has no alias {name}: `fn alias list {function}` shows those it has");
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    scheduler.state().catalog.remove_alias(function, name);
    follow(scheduler, function).await;
    drop(order);
    Ok(())
}

/// Why a version cannot serve whose secrets are not all there: none of its instances would start. `None` if it can.
fn lacks_secret(scheduler: &Scheduler, function: &FunctionId, version: VersionNumber) -> Option<ApiError> {
    let known = scheduler.state().catalog.known(function, version);
    let (ClaimedVersion::Live(live) | ClaimedVersion::Older(live)) = known else {
        return None;
    };
    let error = scheduler.secrets.of(function, &live.spec.config).err()?;
    let message = format!("version {version} cannot serve: {}", error.message);
    Some(ApiError::new(ErrorCode::Conflict, message))
}

/// Whether the alias names the version already.
fn is_named_by(scheduler: &Scheduler, function: &FunctionId, name: &AliasName, version: VersionNumber) -> bool {
    let state = scheduler.state();
    let mut aliases = state.catalog.aliases(function);
    aliases.any(|alias| alias.name == *name && alias.targets.iter().any(|target| target.version == version))
}

fn check_targets(targets: &[AliasTarget]) -> Result<(), ApiError> {
    let bad = |message: String| Err(ApiError::new(ErrorCode::BadRequest, message));
    if !(1..=TARGETS_MAX).contains(&targets.len()) {
        return bad(format!(
            "an alias names 1 to {TARGETS_MAX} versions, not {}",
            targets.len()
        ));
    }
    if let Some(wrong) = targets.iter().find(|t| !(1..=WEIGHT_MAX).contains(&t.weight)) {
        let (version, weight) = (wrong.version, wrong.weight);
        return bad(format!(
            "the weight of version {version} is {weight}: use 1 to {WEIGHT_MAX}, or leave it out"
        ));
    }
    let mut pairs = targets.iter().zip(targets.iter().skip(1));
    match pairs.find(|(a, b)| a.version == b.version) {
        Some((twice, _)) => bad(format!("version {} is named twice: name it once", twice.version)),
        None => Ok(()),
    }
}

/// Applies a recorded alias in memory. A canary is over if that is `live`.
pub(crate) async fn apply(scheduler: &Scheduler, function: &FunctionId, alias: Alias) {
    if alias.name.is_live() && scheduler.state().end_canary(function) {
        tracing::info!(%function, "a canary was replaced");
        scheduler.metrics.canary_ended(CanaryState::Replaced.as_str());
    }
    follow_alias(scheduler, function, alias).await;
}

/// Has gateways follow a recorded alias.
pub(crate) async fn follow_alias(scheduler: &Scheduler, function: &FunctionId, alias: Alias) {
    scheduler.state().catalog.set_alias(function, alias);
    follow(scheduler, function).await;
}

/// Lets gateways follow a change first, so that they send nothing more to instances that then finish and go.
async fn follow(scheduler: &Scheduler, function: &FunctionId) {
    publish(scheduler).await;
    switch(scheduler, function);
}

/// Has instances of versions that no alias names any more finish and go.
pub(crate) fn switch(scheduler: &Scheduler, function: &FunctionId) {
    {
        let mut state = scheduler.state();
        let state = &mut *state;
        let catalog = &state.catalog;
        state
            .fleet
            .switch(function, |version| catalog.is_named(function, version));
    }
    scheduler.recalls.notify_waiters();
    pump(scheduler);
}

/// Tells the gateways of a change.
pub(crate) fn announce(scheduler: &Scheduler) {
    let revision = scheduler.state().catalog.revision();
    scheduler.routes.revision.send_replace(revision);
}

/// Tells the gateways of a change, and waits until all of them apply it. One that does not within a second follows as
/// soon as it can.
async fn publish(scheduler: &Scheduler) {
    let revision = scheduler.state().catalog.revision();
    if !scheduler.routes.publish(revision, || scheduler.now()).await {
        tracing::warn!("a gateway does not follow a change of an alias within a second");
    }
}

/// The error for what an alias cannot name.
pub(crate) fn refused(scheduler: &Scheduler, function: &FunctionId, why: &AliasError) -> ApiError {
    let keep = scheduler.config.collecting.keep_versions;
    let error = |code, text: String| ApiError::new(code, text);
    match why {
        AliasError::NoFunction => unknown_function(function),
        AliasError::NoVersion {
            version,
            was_there: true,
        } => error(
            ErrorCode::NotFound,
            format!(
                "version {version} of {function} was removed with its snapshot: its function was deleted since, or \
                 only the last {keep} are kept (--keep-versions); deploy its folder again, or use one of `fn versions \
                 {function}`"
            ),
        ),
        AliasError::NoVersion { version, .. } => error(
            ErrorCode::NotFound,
            format!("{function} has no version {version}: `fn versions {function}` lists them"),
        ),
        AliasError::CannotServe { version, state } => error(
            ErrorCode::Conflict,
            format!(
                "version {version} of {function} cannot serve, it is {state}: `fn versions {function}` lists others"
            ),
        ),
        AliasError::Serves(version) => error(
            ErrorCode::Conflict,
            format!("version {version} of {function} is live already: `fn versions {function}` lists others"),
        ),
        AliasError::Refused(why) => why.clone(),
        AliasError::NothingBefore => error(
            ErrorCode::NotFound,
            format!(
                "no version of {function} that is kept served before: `fn versions {function}` lists what is there"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_share_an_alias_by_positive_weights_each_once() {
        let check = |targets: &[(u32, u32)]| {
            let targets = targets.iter().map(|(version, weight)| AliasTarget {
                version: VersionNumber(*version),
                weight: *weight,
            });
            check_targets(&targets.collect::<Vec<_>>()).map_err(|error| error.code)
        };
        assert_eq!(check(&[(7, 1)]), Ok(()));
        assert_eq!(check(&[(7, 90), (8, 10)]), Ok(()));
        assert_eq!(check(&(1..=8).map(|n| (n, WEIGHT_MAX)).collect::<Vec<_>>()), Ok(()));
        let bad = Err(ErrorCode::BadRequest);
        assert_eq!(check(&[]), bad);
        assert_eq!(check(&[(7, 0), (8, 10)]), bad);
        assert_eq!(check(&[(7, WEIGHT_MAX + 1)]), bad);
        assert_eq!(check(&[(7, 1), (7, 2)]), bad);
        assert_eq!(check(&(1..=9).map(|n| (n, 1)).collect::<Vec<_>>()), bad);
    }
}
