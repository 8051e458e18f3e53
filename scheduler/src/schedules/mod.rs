//! Runs functions at the times that their fn.toml says. The leader queues each run as an asynchronous invocation, which
//! then has what those have: it is durable, run at least once, and a dead letter in the end.
//!
//! `runs` decides, `table` and `known` hold what is known, `event` says what a function gets. A run's idempotency key
//! is its schedule and the time at which it was due. So a leader that is killed between queueing a run and storing that
//! it did leaves nothing to be run twice.

mod event;
pub(crate) mod known;
mod runs;
mod table;

use std::time::Duration;

use futures::StreamExt as _;
use rekindle_wire::api::{ScheduleInfo, ScheduledRun};
use rekindle_wire::asynchronous::AcceptedCall;
use rekindle_wire::clock::unix_ms;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, ScheduleName};

use crate::async_calls;
use crate::refusal::from_store;
use crate::state::Scheduler;
use crate::store::StoreError;
use table::{Entry, Key, Live};

/// Longest pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Shortest pause between two looks.
const LOOK_LEAST: Duration = Duration::from_millis(10);
/// Pause before a run that could not be fired, or waits for another, is looked at again.
const AGAIN_MS: i64 = 500;
/// Number of schedules that are looked at at once.
const AT_ONCE: usize = 8;

/// Fires what is due until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let mut failing = false;
    loop {
        match look(&scheduler, unix_ms()).await {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "schedules cannot be stored; trying again");
            }
            Err(_) => {}
        }
        let next = scheduler.schedules.table.lock().next_due();
        let until = next.map_or(LOOK_EVERY, |next| {
            Duration::from_millis(u64::try_from(next - unix_ms()).unwrap_or(0))
        });
        tokio::time::sleep(until.clamp(LOOK_LEAST, LOOK_EVERY)).await;
    }
}

/// Fires what is due at this time.
async fn look(scheduler: &Scheduler, now: i64) -> Result<(), StoreError> {
    let _turn = scheduler.schedules.turn.lock().await;
    follow(scheduler, now).await?;
    let due = scheduler.schedules.table.lock().due(now);
    let mut looked = futures::stream::iter(due)
        .map(|(key, entry)| async move {
            let (entry, stored) = fire(scheduler, &key, entry, now).await;
            (key, entry, stored)
        })
        .buffer_unordered(AT_ONCE);
    let mut outcome = Ok(());
    while let Some((key, entry, stored)) = looked.next().await {
        // It may have been deleted meanwhile.
        if let Some(known) = scheduler.schedules.table.lock().entries.get_mut(&key) {
            *known = entry;
        }
        outcome = outcome.and(stored);
    }
    let upcoming = scheduler.schedules.table.lock().upcoming(now);
    let mut state = scheduler.state();
    if state.upcoming != upcoming {
        state.upcoming = upcoming;
    }
    drop(state);
    outcome
}

/// Follows a change of the versions that serve. Called by whoever has the turn.
async fn follow(scheduler: &Scheduler, now: i64) -> Result<(), StoreError> {
    let schedules = &scheduler.schedules;
    let changes = {
        let known = schedules.table.lock().revision;
        let (revision, serving) = {
            let state = scheduler.state();
            let revision = state.catalog.revision();
            if known == Some(revision) {
                return Ok(());
            }
            (revision, state.catalog.schedules())
        };
        // Without the state: due times of rare dates take a while to be found, and placement would wait.
        let mut table = schedules.table.lock();
        table.revision = Some(revision);
        table.follow(serving, now)
    };
    let stored = async {
        for key in &changes.kept {
            let stored = schedules.table.lock().entries.get(key).map(|entry| entry.stored(key));
            if let Some(stored) = stored {
                scheduler.store.keep_schedule(&stored).await?;
            }
        }
        for (function, name) in &changes.removed {
            scheduler.store.remove_schedule(function, name).await?;
        }
        Ok(())
    };
    let stored = stored.await;
    if stored.is_err() {
        // They begin anew at the next look, which stores them.
        let mut table = schedules.table.lock();
        table.revision = None;
        for key in &changes.kept {
            if let Some(entry) = table.entries.get_mut(key) {
                entry.progress.rule.clear();
            }
        }
    }
    stored
}

/// Fires a run of a schedule, if one is due. Returns the schedule after that, and whether it could be stored.
async fn fire(scheduler: &Scheduler, key: &Key, mut entry: Entry, now: i64) -> (Entry, Result<(), StoreError>) {
    let Some(live) = entry.live.clone() else {
        return (entry, Ok(()));
    };
    let (function, name) = key;
    let metrics = &scheduler.metrics.schedules;
    let before = entry.progress.clone();
    let missed = entry.progress.admit(&live.schedule, &live.table, now);
    if missed > 0 {
        metrics.ran(function.as_str(), "missed", missed);
        tracing::warn!(%function, schedule = %name, missed, "runs of a schedule were missed");
    }
    let goes_on = match goes_on(scheduler, &entry).await {
        Ok(goes_on) => goes_on,
        Err(error) => {
            entry.not_before_unix_ms = now + AGAIN_MS;
            return (entry, Err(error));
        }
    };
    let (next, skipped) = entry.progress.next(live.schedule.overlap, goes_on);
    if skipped > 0 {
        metrics.ran(function.as_str(), "skipped", skipped);
        tracing::info!(%function, schedule = %name, skipped, "a run was left out, as the one before goes on");
    }
    if let Some(due) = next {
        fire_one(scheduler, key, &live, &mut entry, due, now).await;
    }
    if !entry.progress.waiting.is_empty() {
        entry.not_before_unix_ms = now + AGAIN_MS;
    }
    entry.foresee();
    let stored = match entry.progress == before {
        true => Ok(()),
        false => scheduler.store.keep_schedule(&entry.stored(key)).await,
    };
    (entry, stored)
}

async fn fire_one(scheduler: &Scheduler, key: &Key, live: &Live, entry: &mut Entry, due: i64, now: i64) {
    let (function, name) = key;
    let metrics = &scheduler.metrics.schedules;
    let accepted = async_calls::accept_own(scheduler, event::call(function, &live.schedule, due)).await;
    let (call, outcome) = match accepted {
        Ok(accepted) if accepted.known => (Some(accepted.id), "known"),
        Ok(accepted) => (Some(accepted.id), "fired"),
        // An earlier leader queued it for a version with another payload.
        Err(error) if error.code == ErrorCode::Conflict => (None, "known"),
        Err(error) => {
            metrics.ran(function.as_str(), "refused", 1);
            tracing::warn!(%function, schedule = %name, %error, "a scheduled run could not be queued; trying again");
            return;
        }
    };
    metrics.ran(function.as_str(), outcome, 1);
    let late_ms = unix_ms().saturating_sub(due);
    metrics.was_late(Duration::from_millis(u64::try_from(late_ms).unwrap_or(0)));
    let id = call.as_ref().map(tracing::field::display);
    tracing::info!(%function, schedule = %name, call = id, late_ms, outcome, "a run of a schedule is queued");
    entry.progress.fired(ScheduledRun {
        due_unix_ms: due,
        fired_unix_ms: now,
        call,
    });
}

/// Whether the schedule's last run has not ended, where that matters.
async fn goes_on(scheduler: &Scheduler, entry: &Entry) -> Result<bool, StoreError> {
    let last = entry.progress.last.as_ref().and_then(|last| last.call.as_ref());
    let Some(id) = last.filter(|_| !entry.progress.waiting.is_empty()) else {
        return Ok(false);
    };
    let call = scheduler.store.call(id).await?;
    Ok(call.is_some_and(|row| !row.call.state.is_final()))
}

/// The schedules of a namespace, or of one function in it.
///
/// # Errors
/// `function_not_found` if the function does not exist.
pub(crate) async fn list(
    scheduler: &Scheduler,
    namespace: &str,
    function: Option<&FunctionId>,
) -> Result<Vec<ScheduleInfo>, ApiError> {
    if let Some(function) = function {
        check_function(scheduler, function)?;
    }
    {
        let _turn = scheduler.schedules.turn.lock().await;
        follow(scheduler, unix_ms()).await.map_err(from_store)?;
    }
    let table = scheduler.schedules.table.lock();
    let wanted = |(of, _): &Key| of.namespace() == namespace && function.is_none_or(|function| function == of);
    let all = table.entries.iter().filter(|(key, _)| wanted(key));
    Ok(all.filter_map(|(key, entry)| entry.info(key)).collect())
}

/// Pauses or resumes a schedule. A resumed one begins anew.
///
/// # Errors
/// If no version that serves has it, or the database fails.
pub(crate) async fn pause(
    scheduler: &Scheduler,
    function: &FunctionId,
    name: &ScheduleName,
    paused: bool,
) -> Result<ScheduleInfo, ApiError> {
    let _turn = scheduler.schedules.turn.lock().await;
    let (key, mut entry) = find(scheduler, function, name).await?;
    if entry.paused != paused {
        let rule = entry.progress.rule.clone();
        entry.paused = paused;
        entry.progress.begin(rule, unix_ms());
        entry.foresee();
        let stored = scheduler.store.keep_schedule(&entry.stored(&key)).await;
        stored.map_err(from_store)?;
        tracing::info!(%function, schedule = %name, paused, "a schedule is paused or resumed");
        if let Some(known) = scheduler.schedules.table.lock().entries.get_mut(&key) {
            *known = entry.clone();
        }
    }
    entry.info(&key).ok_or_else(|| unknown(function, name, &[]))
}

/// Runs a schedule now, besides the runs that are due.
///
/// # Errors
/// If no version that serves has it, or its function's queue is full.
pub(crate) async fn run_now(
    scheduler: &Scheduler,
    function: &FunctionId,
    name: &ScheduleName,
) -> Result<AcceptedCall, ApiError> {
    let live = {
        let _turn = scheduler.schedules.turn.lock().await;
        find(scheduler, function, name).await?.1.live
    };
    let Some(live) = live else {
        return Err(unknown(function, name, &[]));
    };
    let call = event::call_by_hand(function, &live.schedule, unix_ms());
    let accepted = async_calls::accept(scheduler, call).await?;
    scheduler.metrics.schedules.ran(function.as_str(), "by_hand", 1);
    tracing::info!(%function, schedule = %name, call = %accepted.id, "a schedule is run by hand");
    Ok(accepted)
}

/// The schedule of a version that serves. Called by whoever has the turn.
async fn find(scheduler: &Scheduler, function: &FunctionId, name: &ScheduleName) -> Result<(Key, Entry), ApiError> {
    check_function(scheduler, function)?;
    follow(scheduler, unix_ms()).await.map_err(from_store)?;
    let key = (function.clone(), name.clone());
    let table = scheduler.schedules.table.lock();
    if let Some(entry) = table.entries.get(&key).filter(|entry| entry.live.is_some()) {
        return Ok((key, entry.clone()));
    }
    let own = table
        .entries
        .iter()
        .filter(|((of, _), entry)| of == function && entry.live.is_some());
    let names: Vec<_> = own.map(|((_, name), _)| name.as_str()).collect();
    Err(unknown(function, name, &names))
}

fn check_function(scheduler: &Scheduler, function: &FunctionId) -> Result<(), ApiError> {
    let catalog = &scheduler.state().catalog;
    match catalog.has(function) {
        true => Ok(()),
        false => Err(catalog.missing(function)),
    }
}

fn unknown(function: &FunctionId, name: &ScheduleName, others: &[&str]) -> ApiError {
    let others = match others {
        [] => "none: add [[schedule]] to its fn.toml and deploy".to_owned(),
        others => others.join(", "),
    };
    let message = format!("what serves of {function} has no schedule \"{name}\"; it has {others}");
    ApiError::new(ErrorCode::NotFound, message)
}
