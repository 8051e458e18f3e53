//! Canaries: a new version gets a share of a function's invocations that grows step by step. It is rolled back by
//! itself where it is worse than the old version by more than chance explains.
//!
//! ```text
//! Growing ──the step is over──> Growing (the next share) ──the last step is over──> Live
//!    ├──worse than the old version──> RolledBack
//!    └──`live` set by anything else──> Replaced
//! ```
//!
//! The leader drives them. All state is in the database, and changes there together with the alias `live`. Only what
//! gateways have counted since the step began is in memory: they tell a new leader everything again.
//!
//! Both versions are compared again and again, and each comparison could be wrong by chance. So the n-th one of a step
//! has a limit of its own, by n (n + 1), and all of them together at most [`WRONG`].

mod compare;
mod fisher;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rekindle_wire::api::{Alias, Canary, CanaryCheck, CanaryState, CanarySteps};
use rekindle_wire::clock::unix_ms;
use rekindle_wire::{AliasName, ApiError, FunctionId, VersionNumber};

use crate::refusal::from_store;
use crate::releases;
use crate::state::Scheduler;
use crate::store::StoreError;
use compare::{CHECKS, OutcomesByStart, compare};

/// Greatest chance that a version that is no worse is rolled back, in all steps together.
const WRONG: f64 = 0.05;
/// How often canaries are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Number of comparisons in a step that lasts no longer than it has to.
const LOOKS: i64 = 10;
/// Invocations that the new version must have been sent in a step before the next one begins.
const LEAST: u64 = 20;

/// How a version's share grows.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    pub(crate) steps: CanarySteps,
    pub(crate) step_s: u64,
}

/// The first step of a canary. `None` if nothing serves that the version could be compared with.
pub(crate) fn first(
    scheduler: &Scheduler,
    function: &FunctionId,
    to: VersionNumber,
    growth: &Growth,
) -> Option<Canary> {
    let state = scheduler.state();
    let open = state.canaries.get(function).map(|open| open.from);
    let from = open.or_else(|| Some(state.catalog.live(function)?.spec.version))?;
    let now = unix_ms();
    (from != to).then(|| Canary {
        from,
        to,
        steps: growth.steps.clone(),
        step_s: growth.step_s,
        step: 0,
        since_unix_ms: now,
        state: CanaryState::Growing,
        why: None,
        looks: 0,
        looked_unix_ms: now,
        checks: Vec::new(),
    })
}

/// Drives canaries until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    loop {
        tokio::time::sleep(TICK).await;
        let open: Vec<FunctionId> = scheduler.state().canaries.keys().cloned().collect();
        for function in open {
            if let Err(error) = drive(&scheduler, &function).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%function, error, "a canary could not be moved on; trying again");
            }
        }
    }
}

/// Compares the versions of a canary if that is due, and moves it on.
async fn drive(scheduler: &Scheduler, function: &FunctionId) -> Result<(), StoreError> {
    let _order = scheduler.releasing.lock().await;
    let (canary, next) = {
        let state = scheduler.state();
        let Some(canary) = state.canaries.get(function) else {
            return Ok(());
        };
        let of = |version| state.shares.of(function, version);
        let next = next(canary, &of(canary.from), &of(canary.to), unix_ms());
        (canary.clone(), next)
    };
    let Some(next) = next else {
        return Ok(());
    };
    if next.alias() == canary.alias() {
        scheduler.store.note_canary(function, &next).await?;
        scheduler.state().canaries.insert(function.clone(), next);
        return Ok(());
    }
    match scheduler.store.move_canary(function, &next).await? {
        Ok(true) => {}
        Ok(false) => {
            scheduler.state().end_canary(function);
            return Ok(());
        }
        Err(why) => {
            tracing::warn!(%function, ?why, "a canary cannot go on: one of its versions is gone");
            scheduler.state().end_canary(function);
            return Ok(());
        }
    }
    let (to, from, percent) = (next.to, next.from, next.percent());
    match (next.state, &next.why) {
        (CanaryState::RolledBack, why) => {
            tracing::warn!(%function, version = %to, in_favour_of = %from, why, "a canary was rolled back");
        }
        (CanaryState::Live, _) => tracing::info!(%function, version = %to, "a canary has become live"),
        _ => tracing::info!(%function, version = %to, percent, "a canary has grown"),
    }
    apply(scheduler, function, next).await;
    Ok(())
}

/// Has a version that can serve already take over step by step. If nothing else serves, it serves at once.
///
/// # Errors
/// If it cannot serve.
pub(crate) async fn grow(
    scheduler: &Scheduler,
    function: &FunctionId,
    version: VersionNumber,
    growth: Growth,
) -> Result<(), ApiError> {
    let (here, function) = (scheduler.clone(), function.clone());
    releases::whole(scheduler, async move {
        let order = here.releasing.lock().await;
        // The same deploy, sent again, changes nothing.
        let is_same = |open: &Canary| {
            open.state == CanaryState::Growing
                && (open.to, &open.steps, open.step_s) == (version, &growth.steps, growth.step_s)
        };
        if here.state().canaries.get(&function).is_some_and(is_same) {
            return Ok(());
        }
        let Some(canary) = first(&here, &function, version, &growth) else {
            drop(order);
            let alias = Alias::of(AliasName::live(), version);
            return releases::set_now(&here, &function, alias).await.map(drop);
        };
        let begun = here.store.begin_canary(&function, &canary).await.map_err(from_store)?;
        begun.map_err(|why| releases::refused(&here, &function, &why))?;
        apply(&here, &function, canary).await;
        drop(order);
        Ok(())
    })
    .await
}

/// Applies a recorded canary in memory.
pub(crate) async fn apply(scheduler: &Scheduler, function: &FunctionId, canary: Canary) {
    let alias = canary.alias();
    scheduler.state().end_canary(function);
    match canary.state {
        CanaryState::Growing => load(scheduler, function.clone(), canary),
        ended => scheduler.metrics.canary_ended(ended.as_str()),
    }
    releases::follow_alias(scheduler, function, alias).await;
}

/// Goes on with a recorded canary.
pub(crate) fn load(scheduler: &Scheduler, function: FunctionId, canary: Canary) {
    let mut state = scheduler.state();
    state.shares.begin(&function, canary.alias().targets);
    state.canaries.insert(function, canary);
}

/// What becomes of a canary now. `None` if it stays as it is.
fn next(canary: &Canary, old: &OutcomesByStart, new: &OutcomesByStart, now: i64) -> Option<Canary> {
    let step_ms = i64::try_from(canary.step_s).unwrap_or(i64::MAX).saturating_mul(1_000);
    let is_over = now.saturating_sub(canary.since_unix_ms) >= step_ms;
    let look_ms = step_ms / LOOKS;
    if now.saturating_sub(canary.looked_unix_ms) < look_ms {
        return None;
    }
    let look = canary.looks + 1;
    let checks = compare(old, new, limit(canary, look));
    let counts = |checks: &[CanaryCheck]| checks.first().map(|check| (check.old, check.new));
    let is_news = counts(&checks) != counts(&canary.checks);
    let sent = checks.first().map_or(0, |check| check.new.of);
    let mut next = canary.clone();
    next.looked_unix_ms = now;
    if is_news {
        (next.looks, next.checks) = (look, checks);
    }
    let worse: Vec<String> = next.checks.iter().filter(|check| check.worse).map(explain).collect();
    if !worse.is_empty() {
        next.state = CanaryState::RolledBack;
        next.why = Some(worse.join("; "));
        return Some(next);
    }
    if is_over && sent >= LEAST {
        next.step += 1;
        (next.looks, next.since_unix_ms) = (0, now);
        let steps = canary.steps.percents().len();
        if usize::try_from(next.step).unwrap_or(usize::MAX) >= steps {
            next.state = CanaryState::Live;
        }
        return Some(next);
    }
    is_news.then_some(next)
}

/// Below this chance a difference counts, at the n-th comparison of a step.
fn limit(canary: &Canary, look: u32) -> f64 {
    let steps = canary.steps.percents().len() as f64;
    WRONG / steps / f64::from(CHECKS) / (f64::from(look) * f64::from(look + 1))
}

/// A check that failed, in words.
fn explain(check: &CanaryCheck) -> String {
    let CanaryCheck { what, old, new, p, .. } = check;
    let what = match check.slow_ms {
        None => "failed".to_owned(),
        Some(ms) => format!("({what}) took over {ms} ms"),
    };
    format!(
        "{} of {} invocations {what}, of the old version {} of {}: by chance in {p:.1e} of all cases",
        new.hits, new.of, old.hits, old.of
    )
}
