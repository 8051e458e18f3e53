//! Renews snapshots of live versions, one at a time, while the old ones keep serving.
//!
//! ```text
//! outdated, refused, asked for ──> waits ──its turn──> boot, warm up, checkpoint ──> exchanged
//!                                    ^                           │
//!                                    └──1 min, 2, … 1 h──────────┴──8 failures──> given up, until asked again
//! ```
//!
//! A renewal that was given up is tried again on request, or when workers change.
//!
//! Nothing begins while the workers that take new instances use different tools for snapshots: one of an earlier build
//! could not restore what a later one made. Waiting renewals are in the database, so that another leader continues with
//! them. The booted instance serves no requests and counts towards no version. Instances that began as the old snapshot
//! continue, and it stays in the store until none is left.

pub(crate) mod refused;
pub(crate) mod renewals;

use std::time::{Duration, Instant};

use rekindle_wire::api::{SnapshotSummary, StartKind, VersionInfo};
use rekindle_wire::clock::unix_s;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{BuiltLayers, PrepareEvent, PrepareRequest, VersionSpec};
use rekindle_wire::renewal::{MadeWith, RenewalReason};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, SnapshotKey};
use tracing::Instrument as _;

use crate::catalog::{LiveVersion, NO_VERSION};
use crate::clock::Millis;
use crate::fleet::Stage;
use crate::placement::{Decision, SlotRequest, place};
use crate::placing;
use crate::prepare::{PrepareEvents, keep_runtime_snapshot, runtime_snapshot, until_gone};
use crate::refusal::{from_store, unknown_function};
use crate::state::Scheduler;
use crate::store::{ATTEMPTS_MAX, AttemptReset, DueRenewal, StoreError};

/// How often the queue is checked for a renewal that is due.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A scheduler that has led for less time may not have heard from every worker.
const HEARD_OF_ALL: Millis = Millis(12_000);
/// Longest duration of an attempt, without the boot.
const LIMIT: Duration = Duration::from_secs(300);
/// Pause after the first failure, in seconds. It doubles with each further one, up to `PAUSE_LAST`.
const PAUSE_FIRST: i64 = 60;
const PAUSE_LAST: i64 = 3_600;
/// Pause before room is looked for again, in seconds. A lack of room is no failure.
const PAUSE_FOR_ROOM: i64 = 60;
/// Number of functions for which the time of the last renewal is remembered.
const REMEMBERED: usize = 10_000;
/// Why an attempt failed.
#[derive(Debug)]
struct Failure {
    /// Short name for metrics.
    reason: &'static str,
    error: String,
    /// Whether room was missing, so that the attempt could succeed elsewhere or later.
    no_room: bool,
}

impl Failure {
    fn of(reason: &'static str, error: impl Into<String>) -> Self {
        Self {
            reason,
            error: error.into(),
            no_room: false,
        }
    }
}

/// Requests a new snapshot of the live version. Returns the version.
///
/// # Errors
/// If the function does not exist, or has no live version with a snapshot.
pub(crate) async fn ask(scheduler: &Scheduler, function: &FunctionId) -> Result<VersionInfo, ApiError> {
    let live = scheduler.state().catalog.live(function);
    let Some(live) = live else {
        let known = scheduler.store.versions(function, 1).await.map_err(from_store)?;
        return Err(match known.is_empty() {
            true => unknown_function(function),
            false => ApiError::new(
                ErrorCode::Conflict,
                format!("no version of {function} is live: deploy it"),
            ),
        });
    };
    if !live.spec.config.snapshot {
        return Err(ApiError::new(
            ErrorCode::Conflict,
            format!("{function} has no snapshot: take \"snapshot = false\" out of its fn.toml and deploy it"),
        ));
    }
    let (version, now) = (live.spec.version, unix_s());
    let cause = (RenewalReason::Asked, "somebody asked for it");
    let store = &scheduler.store;
    let wanted = store
        .want_renewal((function, version), cause, (now, now), AttemptReset::Always)
        .await;
    wanted.map_err(from_store)?;
    scheduler.renewals.wake.notify_one();
    let version = store.version(function, version).await.map_err(from_store)?;
    version.ok_or_else(|| unknown_function(function))
}

/// Renews snapshots until dropped.
pub(crate) async fn run(scheduler: Scheduler) {
    let (mut compared, mut failing) = (None, false);
    loop {
        // Usually the pause ends without a wake-up.
        let _ = tokio::time::timeout(LOOK_EVERY, scheduler.renewals.wake.notified()).await;
        match look(&scheduler, &mut compared).await {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "which snapshots are to be made anew cannot be told; trying again"
                );
            }
            Err(_) => {}
        }
    }
}

/// If the workers' tools have changed, compares live versions with them. Then renews one snapshot.
async fn look(scheduler: &Scheduler, compared: &mut Option<MadeWith>) -> Result<(), StoreError> {
    count(scheduler).await?;
    let makes = (scheduler.now() >= HEARD_OF_ALL)
        .then(|| scheduler.state().fleet.makes())
        .flatten();
    let Some(makes) = makes else {
        return Ok(());
    };
    if compared.as_ref() != Some(&makes) {
        compare(scheduler, &makes).await?;
        *compared = Some(makes);
    }
    // Deploys go first.
    let Ok(turn) = scheduler.preparing.try_acquire() else {
        return Ok(());
    };
    let Some(due) = scheduler.store.due_renewal(unix_s()).await? else {
        return Ok(());
    };
    // A renewal with a slow boot does not hold up deploys: there is one renewal at a time.
    let _turn = (!due.spec.config.boots_slowly()).then_some(turn);
    let span = tracing::info_span!(
        "renew_snapshot",
        "rekindle.role" = "scheduler",
        faas.invoked_name = %due.spec.function,
        faas.version = due.spec.version.0,
        rekindle.reason = due.reason.as_str(),
        otel.status_code = tracing::field::Empty,
        error.type = tracing::field::Empty,
    );
    renew(scheduler, &due).instrument(span).await?;
    // The next renewal can begin at once.
    scheduler.renewals.wake.notify_one();
    count(scheduler).await
}

async fn count(scheduler: &Scheduler) -> Result<(), StoreError> {
    let waiting = scheduler.store.renewals_waiting().await?;
    *scheduler.renewals.waiting.lock() = waiting;
    Ok(())
}

/// Queues the snapshots that were made with other tools.
async fn compare(scheduler: &Scheduler, makes: &MadeWith) -> Result<(), StoreError> {
    let (mut outdated, now) = (0, unix_s());
    for (function, version, made) in scheduler.store.serving_snapshots().await? {
        let Some(reason) = makes.outdates(made.as_ref()) else {
            continue;
        };
        let made = made.map_or_else(|| "with what it does not say".to_owned(), |made| format!("in {made}"));
        let why = format!("it was made {made}, and workers make {makes}");
        let store = &scheduler.store;
        let noted = store.want_renewal(
            (&function, version),
            (reason, &why),
            (now, now),
            AttemptReset::ForAnotherCause,
        );
        outdated += usize::from(noted.await?);
    }
    if outdated > 0 {
        tracing::info!(outdated, %makes, "snapshots are to be made anew");
    }
    Ok(())
}

/// Makes one attempt and records its outcome.
async fn renew(scheduler: &Scheduler, due: &DueRenewal) -> Result<(), StoreError> {
    let DueRenewal { spec, reason, attempts } = due;
    let (function, version) = (&spec.function, spec.version);
    if scheduler.state().catalog.serving(function, version).is_none() {
        return scheduler.store.drop_renewal(function, version).await;
    }
    tracing::info!(%function, %version, %reason, attempts, "a snapshot is being made anew");
    let began = Instant::now();
    let limit = LIMIT + spec.config.boot_timeout();
    let outcome = tokio::time::timeout(limit, attempt(scheduler, spec)).await;
    let too_long = |_| Failure::of("timeout", format!("it took more than {} s", limit.as_secs()));
    // Namespaces are encrypted under the same lock.
    let order = scheduler.releasing.lock().await;
    let failure = match outcome.map_err(too_long).and_then(|done| done) {
        Ok(RenewedSnapshot { spec, snapshot, key }) if scheduler.seals.may_record(function, key.as_ref()) => {
            return exchange(scheduler, due, &spec, &snapshot, began.elapsed()).await;
        }
        Ok(_) => Failure::of("encrypted", "its namespace was encrypted while it was made"),
        Err(failure) => failure,
    };
    drop(order);
    let span = tracing::Span::current();
    span.record("otel.status_code", "ERROR");
    span.record("error.type", failure.reason);
    scheduler.metrics.renewed("failed", failure.reason);
    let (failures, pause) = match failure.no_room {
        true => (*attempts, PAUSE_FOR_ROOM),
        false => (attempts + 1, pause_after(*attempts)),
    };
    let given_up = failures >= ATTEMPTS_MAX;
    let error = failure.error;
    tracing::warn!(%function, %version, %reason, failures, given_up, error, "a snapshot could not be made anew; the \
        old one serves on");
    let due = unix_s().saturating_add(pause);
    scheduler
        .store
        .renewal_failed((function, version), failures, &error, due)
        .await
}

/// Seconds until the next attempt, given the number of failures before the last one.
fn pause_after(failed: u32) -> i64 {
    let doubled = 1_i64
        .checked_shl(failed)
        .and_then(|times| PAUSE_FIRST.checked_mul(times));
    doubled.unwrap_or(PAUSE_LAST).min(PAUSE_LAST)
}

/// Starts the version from the new snapshot from now on.
async fn exchange(
    scheduler: &Scheduler,
    due: &DueRenewal,
    made: &VersionSpec,
    snapshot: &SnapshotSummary,
    took: Duration,
) -> Result<(), StoreError> {
    let (function, version) = (&made.function, made.version);
    let serving = scheduler.state().catalog.serving(function, version);
    // The version may have lost the snapshot that it had.
    let old = serving.and_then(|live| live.spec.snapshot.clone());
    if !scheduler.store.renewed(made, snapshot, old.as_ref(), unix_s()).await? {
        tracing::info!(%function, %version, "a snapshot was made anew for a version that is gone");
        return Ok(());
    }
    scheduler.state().catalog.exchange(made);
    let renewals = &scheduler.renewals;
    let mut renewed = renewals.renewed.lock();
    if renewed.len() >= REMEMBERED {
        renewed.clear();
    }
    renewed.insert(function.clone(), unix_s());
    renewals.failed_on.lock().remove(function);
    scheduler.metrics.renewed("done", due.reason.as_str());
    let old = old.map(|old| old.to_string());
    tracing::info!(
        %function, %version, reason = %due.reason, old, snapshot = %snapshot.id, ms = took.as_secs_f64() * 1e3,
        "a snapshot was made anew"
    );
    Ok(())
}

/// What a worker made.
struct RenewedSnapshot {
    spec: VersionSpec,
    snapshot: SnapshotSummary,
    /// The key that the worker was given.
    key: Option<SnapshotKey>,
}

/// Makes a worker boot the version, warm it up and checkpoint it.
async fn attempt(scheduler: &Scheduler, spec: &VersionSpec) -> Result<RenewedSnapshot, Failure> {
    let instance = InstanceId::generate();
    let address = find_room(scheduler, spec, &instance)?;
    let ended = DiscardOnDrop {
        scheduler,
        instance: &instance,
    };
    let done = tokio::select! {
        done = follow(scheduler, &address, spec, &instance) => done,
        () = until_gone(scheduler, instance.clone()) => Err(Failure::of("worker_lost", "its worker is not heard of any \
            more")),
    };
    drop(ended);
    if done.is_err() {
        let mut failed_on = scheduler.renewals.failed_on.lock();
        if failed_on.len() >= REMEMBERED {
            failed_on.clear();
        }
        failed_on.insert(spec.function.clone(), address);
    }
    done
}

/// Discards the instance, however an attempt ends.
struct DiscardOnDrop<'a> {
    scheduler: &'a Scheduler,
    instance: &'a InstanceId,
}

impl Drop for DiscardOnDrop<'_> {
    fn drop(&mut self) {
        placing::kill(self.scheduler, self.instance.clone());
    }
}

/// Sets memory aside if there is some. Nothing is evicted for a renewal.
fn find_room(scheduler: &Scheduler, spec: &VersionSpec, instance: &InstanceId) -> Result<String, Failure> {
    let apart = VersionSpec {
        version: NO_VERSION,
        snapshot: None,
        ..spec.clone()
    };
    let live = LiveVersion { spec: apart.into() };
    let ask = SlotRequest {
        gateway: GatewayId::generate(),
        version: None,
        held: Vec::new(),
        force: Some(StartKind::Booted),
        avoid: scheduler
            .renewals
            .failed_on
            .lock()
            .get(&spec.function)
            .cloned()
            .into_iter()
            .collect(),
        avoid_until: Millis(u64::MAX),
    };
    let mut state = scheduler.state();
    let now = scheduler.now();
    let fleet = &mut state.fleet;
    if let Decision::Start { worker, kind } = place(fleet, &live, &ask, now) {
        fleet.add(instance.clone(), worker, &live.spec, kind, Stage::Preparing, now);
        if let Some(address) = fleet.address_of(instance) {
            return Ok(address);
        }
        drop(fleet.forget(instance, now));
    }
    Err(Failure {
        reason: ErrorCode::NoCapacity.as_str(),
        error: format!("no worker has the {} free that an instance needs", spec.config.memory),
        no_room: true,
    })
}

async fn follow(
    scheduler: &Scheduler,
    address: &str,
    spec: &VersionSpec,
    instance: &InstanceId,
) -> Result<RenewedSnapshot, Failure> {
    let secrets = scheduler.secrets.of(&spec.function, &spec.config);
    let key = scheduler.seals.of(&spec.function);
    let order = PrepareRequest {
        // The worker reports no such instance.
        ticket: None,
        secrets: secrets.map_err(|e| Failure::of(e.code.as_str(), e.message))?,
        snapshot_key: key.map_err(|e| Failure::of(e.code.as_str(), e.message))?,
        instance: instance.clone(),
        function: spec.function.clone(),
        version: spec.version,
        uid: spec.uid,
        config: spec.config.clone(),
        source_key: String::new(),
        sharing: scheduler.config.sharing,
        runtime_snapshot: runtime_snapshot(scheduler, &spec.function, spec.config.base).await,
        built: Some(BuiltLayers {
            rootfs: spec.rootfs.clone(),
            layer: spec.layer.clone(),
            reaper: spec.reaper,
        }),
    };
    let lost = |why| Failure::of("worker_lost", format!("its worker was lost: {why}"));
    let mut told = PrepareEvents::order(scheduler, address, &order).await.map_err(lost)?;
    loop {
        match told.next().await.map_err(lost)? {
            PrepareEvent::Phase { .. } => {}
            PrepareEvent::Failed { error } => return Err(Failure::of(error.code.as_str(), error.message)),
            PrepareEvent::Done { spec: made, .. }
                if (&made.function, made.version) != (&spec.function, spec.version) =>
            {
                return Err(lost(format!("it answered for {} {}", made.function, made.version)));
            }
            PrepareEvent::Done {
                spec: made,
                snapshot: Some(snapshot),
                runtime_snapshot,
                ..
            } => {
                if let Some(named) = runtime_snapshot {
                    keep_runtime_snapshot(scheduler, &spec.function, spec.config.base, &named).await;
                }
                let (spec, key) = (made, order.snapshot_key);
                return Ok(RenewedSnapshot { spec, snapshot, key });
            }
            PrepareEvent::Done {
                snapshot_error,
                no_room,
                ..
            } => {
                return Err(Failure {
                    reason: "no_snapshot",
                    error: snapshot_error.unwrap_or_else(|| "it took no snapshot".to_owned()),
                    no_room,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_an_hour() {
        assert_eq!(
            [0, 1, 5, 6, 7, 63, 64, u32::MAX].map(pause_after),
            [60, 120, 1_920, 3_600, 3_600, 3_600, 3_600, 3_600]
        );
    }
}
