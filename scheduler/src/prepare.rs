//! Makes an accepted version live. A worker builds, boots, warms up, snapshots and rehearses it and reports each step,
//! which is recorded here.
//!
//! ```text
//! Queued ─> Building ─> Booting ─> Warming ─> Snapshotting ─> Rehearsing ─> Live
//!    each of them ─> Failed   (also: worker gone, time over)
//! ```
//!
//! A version that differs from the live one only in settings is not built. It is booted, or it takes over the live
//! version's snapshot and is live at once ([`Plan`]).
//!
//! The limit is ten minutes and two boots from when its turn has come. If a worker is lost, or cannot continue for a
//! reason of its own, another starts over.

mod phases;
mod preparation;
mod runtime_snapshot;
mod worker;

use std::time::{Duration, Instant};

use rekindle_wire::api::{Alias, PhaseTime, SnapshotSummary, VersionInfo};
use rekindle_wire::clock::unix_s;
use rekindle_wire::internal::{BuiltLayers, VersionSpec};
use rekindle_wire::renewal::RenewalReason;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, InstanceId, SnapshotKey, VersionNumber};

use self::preparation::Preparation;
pub(crate) use self::runtime_snapshot::{keep_runtime_snapshot, runtime_snapshot};
pub(crate) use self::worker::{PrepareEvents, until_gone};
use crate::canary::{self, Growth};
use crate::digests;
use crate::placing::{self, pump};
use crate::releases;
use crate::state::{DeployPlace, Scheduler};
use crate::store::{AttemptReset, NewVersion, Rollout, StoreError};

/// Longest duration of the whole preparation, without two boots.
const LIMIT: Duration = Duration::from_secs(600);
/// How long storing the outcome is tried, and the pause in between.
const STORE_LIMIT: Duration = Duration::from_secs(60);
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Why a snapshot that was made is not recorded.
const ENCRYPTED_MEANWHILE: &str = "its namespace was encrypted while it was made: it is made anew";

/// What has to be done until a version is ready.
pub(crate) enum Plan {
    /// All of it.
    Build,
    Boot(BuiltLayers),
    /// It differs from this version only in what the platform reads: it takes over the snapshot.
    TakeOver(Box<VersionSpec>, Option<SnapshotSummary>),
}

/// What a version serves once it is ready.
#[derive(Debug, Clone)]
pub(crate) enum Release {
    /// Nothing but its own URL.
    Hold,
    /// All of the function's invocations.
    All,
    /// A share of them that grows.
    Grow(Growth),
}

/// Prepares a version in a task of its own. `place` is its place among the deploys in progress.
pub(crate) fn begin(
    scheduler: &Scheduler,
    version: NewVersion,
    source_key: String,
    plan: Plan,
    place: DeployPlace,
    release: Release,
) {
    let here = scheduler.clone();
    scheduler.tasks.spawn(async move {
        let VersionInfo {
            function,
            version: number,
            ..
        } = version.info.clone();
        let _place = place;
        // What is taken over stays as it is.
        let is_made = !matches!(plan, Plan::TakeOver(..));
        let (instance, phases, mut outcome) = match plan {
            Plan::Build => prepare(&here, &version, &source_key, None).await,
            Plan::Boot(built) => prepare(&here, &version, &source_key, Some(built)).await,
            Plan::TakeOver(spec, snapshot) => {
                let done = take_over(&version, *spec, snapshot);
                (done.instance.clone(), Vec::new(), Ok(done))
            }
        };
        let order = here.releasing.lock().await;
        let is_left_out = outcome
            .as_mut()
            .is_ok_and(|done| is_made && done.without_clear_snapshot(&here));
        let canary = match &release {
            Release::Grow(growth) => canary::first(&here, &function, number, growth),
            Release::Hold | Release::All => None,
        };
        let part = match (&release, &canary) {
            (Release::Hold, _) => Rollout::Nothing,
            (_, Some(canary)) => Rollout::Share(canary),
            (_, None) => Rollout::All,
        };
        let mut is_unsure = false;
        if let Ok(done) = &outcome {
            let (snapshot, why_none) = (done.snapshot.as_ref(), done.snapshot_error.as_deref());
            let set_live = || here.store.set_live(&done.spec, snapshot, why_none, &phases, part);
            let stored = keep_storing(set_live).await;
            is_unsure = stored.is_err();
            let why = match stored {
                Ok(true) => None,
                Ok(false) if version.info.reused.is_some() => {
                    Some("the version whose files it uses was removed meanwhile: deploy again")
                }
                Ok(false) => Some("the function was deleted meanwhile, or this deploy was given up: deploy again"),
                Err(_) => Some("the scheduler's database did not take it: see the scheduler's log, and deploy again"),
            };
            if let Some(why) = why {
                outcome = Err(ApiError::new(ErrorCode::Unavailable, why));
            }
        }
        here.metrics.deployed(outcome.is_ok(), &phases);
        if let Err(error) = &outcome {
            let set_failed = || here.store.set_failed(&function, number, error, &phases);
            let stored = keep_storing(set_failed).await;
            if stored.is_err() || is_unsure && stored.is_ok_and(|is_noted| !is_noted) {
                tracing::error!(
                    %function, version = %number,
                    "the outcome of a deploy could not be stored: restart the scheduler before the next deploy of it"
                );
                return abandon(&here, instance);
            }
        }
        match outcome {
            Ok(done) => {
                let snapshot = done.snapshot.is_some();
                // The first instance is no copy of the snapshot: who needs a fresh one, or secrets, has no use for it.
                // One that was booted of files that there were has been ended by its worker.
                let is_whole = !done.spec.config.deploys_without_secrets();
                let serves = version.info.reused.is_none() && is_whole && !(done.spec.config.fresh && snapshot);
                tracing::info!(%function, version = %number, snapshot, ?release, "a version is ready");
                {
                    let mut state = here.state();
                    let now = here.now();
                    state.catalog.add(done.spec);
                    if serves {
                        state.fleet.prepared(&function, number, now);
                    }
                }
                if !serves {
                    abandon(&here, instance);
                }
                match (release, canary) {
                    (Release::Hold, _) => releases::announce(&here),
                    (_, Some(canary)) => canary::apply(&here, &function, canary).await,
                    (_, None) => releases::apply(&here, &function, Alias::of(AliasName::live(), number)).await,
                }
                drop(order);
                if is_left_out {
                    make_anew(&here, &function, number).await;
                }
                // A worker of an earlier version reported no digest.
                here.tasks.spawn(digests::complete(here.clone()));
                pump(&here);
            }
            Err(error) => {
                drop(order);
                tracing::warn!(%function, version = %number, %error, "a version failed");
                abandon(&here, instance);
            }
        }
        // If this fails, the next collection ends it.
        if let Err(error) = here.objects.end_deploy(&function, number).await {
            tracing::warn!(
                %function, version = %number, error = &error as &dyn std::error::Error,
                "notes of a deploy that is over stay in the store"
            );
        }
    });
}

/// Stores the outcome of a deploy, repeatedly if that fails: a function whose deploy has no outcome can be neither
/// deployed nor removed.
async fn keep_storing<T, S>(store: impl Fn() -> S) -> Result<T, StoreError>
where
    S: Future<Output = Result<T, StoreError>>,
{
    let end = Instant::now() + STORE_LIMIT;
    loop {
        let stored = store().await;
        let Err(error) = &stored else { return stored };
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "the outcome of a deploy is not stored yet"
        );
        if Instant::now() >= end {
            return stored;
        }
        tokio::time::sleep(STORE_PAUSE).await;
    }
}

/// Has a worker prepare the version, from layers that there are already if `built`. Returns the last instance, the
/// phases, and the outcome.
async fn prepare(
    scheduler: &Scheduler,
    version: &NewVersion,
    source_key: &str,
    built: Option<BuiltLayers>,
) -> (InstanceId, Vec<PhaseTime>, Result<PreparedVersion, ApiError>) {
    let turn = scheduler.preparing.acquire().await.ok();
    let mut preparation = Preparation::of(scheduler, version, source_key, built, turn);
    let limit = LIMIT + version.info.config.boot_timeout() * 2;
    let outcome = tokio::time::timeout(limit, preparation.run()).await;
    let Preparation {
        instance,
        phases,
        so_far,
        ..
    } = preparation;
    let too_long = || {
        let minutes = limit.as_secs() / 60;
        let message = format!(
            "it was not ready within {minutes} minutes: make its dependencies or its start smaller, and deploy again"
        );
        ApiError::new(ErrorCode::BuildFailed, message)
    };
    let outcome = outcome.unwrap_or_else(|_| so_far.ok_or_else(too_long));
    if outcome.as_ref().is_ok_and(|done| done.instance != instance) {
        // The instance of a later worker that did no better.
        abandon(scheduler, instance.clone());
    }
    (instance, phases.ended(), outcome)
}

/// The version with the layers and the snapshot of another.
fn take_over(version: &NewVersion, spec: VersionSpec, snapshot: Option<SnapshotSummary>) -> PreparedVersion {
    PreparedVersion {
        instance: InstanceId::generate(),
        spec: VersionSpec {
            version: version.info.version,
            config: version.info.config.clone(),
            ..spec
        },
        snapshot,
        snapshot_error: None,
        no_room: false,
        key: None,
    }
}

/// Queues a renewal of a version whose snapshot was left out.
async fn make_anew(scheduler: &Scheduler, function: &FunctionId, version: VersionNumber) {
    let (cause, now) = ((RenewalReason::Asked, ENCRYPTED_MEANWHILE), unix_s());
    let wanted = scheduler
        .store
        .want_renewal((function, version), cause, (now, now), AttemptReset::Always)
        .await;
    if let Err(error) = wanted {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(%function, %version, error, "a version has no snapshot: `fn snapshot renew` makes one");
    }
}

struct PreparedVersion {
    /// The version's first instance.
    instance: InstanceId,
    spec: VersionSpec,
    snapshot: Option<SnapshotSummary>,
    snapshot_error: Option<String>,
    /// Whether the snapshot is missing because the worker's disk is full.
    no_room: bool,
    /// The key that its worker was given.
    key: Option<SnapshotKey>,
}

impl PreparedVersion {
    /// Leaves out a snapshot that was ordered before its namespace was encrypted.
    fn without_clear_snapshot(&mut self, scheduler: &Scheduler) -> bool {
        let is_clear = self.snapshot.is_some() && !scheduler.seals.may_record(&self.spec.function, self.key.as_ref());
        if is_clear {
            (self.snapshot, self.spec.snapshot, self.spec.snapshot_digest) = (None, None, None);
            self.snapshot_error = Some(ENCRYPTED_MEANWHILE.to_owned());
        }
        is_clear
    }
}

/// Discards the first instance of a version that failed.
fn abandon(scheduler: &Scheduler, instance: InstanceId) {
    placing::kill(scheduler, instance);
}
