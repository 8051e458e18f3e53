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

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use rekindle_wire::api::{Alias, PhaseTime, SnapshotSummary, StartKind, VersionInfo, VersionState};
use rekindle_wire::internal::{BuiltLayers, LayerRef, PrepareEvent, PrepareRequest, RuntimeSnapshot, VersionSpec};
use rekindle_wire::manifest::Base;
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, InstanceId};
use tokio::sync::SemaphorePermit;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::canary::{self, Growth};
use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::digests;
use crate::fleet::Stage;
use crate::placement::{Ask, Decision, Shortage, place};
use crate::placing::{self, pump};
use crate::refusal::{NO_WORKER, chain};
use crate::releases;
use crate::state::{DeployPlace, Scheduler};
use crate::store::{NewVersion, Serves, StoreError};

/// Longest duration of the whole preparation, without two boots.
const LIMIT: Duration = Duration::from_secs(600);
/// Longest wait for a worker with room.
const ROOM_LIMIT: Duration = Duration::from_secs(60);
/// Number of workers tried before a deploy fails through a worker's fault: its disk, its network, its end.
const WORKERS: usize = 3;
/// How often to check that the worker is still heard from.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest line of one event. Error messages carry the last output of a build.
const LINE_MAX: usize = 1 << 20;

/// What has to be done until a version is ready.
pub(crate) enum Plan {
    /// All of it.
    Build,
    /// The version has these layers.
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
        let VersionInfo { function, version: number, .. } = version.info.clone();
        let _place = place;
        let (instance, phases, mut outcome) = match plan {
            Plan::Build => prepare(&here, &version, &source_key, None).await,
            Plan::Boot(built) => prepare(&here, &version, &source_key, Some(built)).await,
            Plan::TakeOver(spec, snapshot) => {
                let done = take_over(&version, *spec, snapshot);
                (done.instance.clone(), Vec::new(), Ok(done))
            }
        };
        let order = here.releasing.lock().await;
        let canary = match &release {
            Release::Grow(growth) => canary::first(&here, &function, number, growth),
            Release::Hold | Release::All => None,
        };
        let part = match (&release, &canary) {
            (Release::Hold, _) => Serves::Nothing,
            (_, Some(canary)) => Serves::Share(canary),
            (_, None) => Serves::All,
        };
        let mut stored = Ok(false);
        if let Ok(done) = &outcome {
            let (snapshot, why_none) = (done.snapshot.as_ref(), done.snapshot_error.as_deref());
            stored = here
                .store
                .set_live(&done.spec, snapshot, why_none, &phases, part)
                .await;
            if let Ok(false) = stored {
                let why = match version.info.reused {
                    Some(_) => "the version whose files it uses was removed meanwhile: deploy again",
                    None => "the function was deleted meanwhile, or this deploy was given up: deploy again",
                };
                outcome = Err(ApiError::new(ErrorCode::Unavailable, why));
            }
        }
        here.metrics.deployed(outcome.is_ok(), &phases);
        if let Err(error) = &outcome {
            let failed = here.store.set_failed(&function, number, error, &phases).await;
            stored = failed.map(|()| false);
        }
        if let Err(error) = stored {
            tracing::error!(%function, version = %number, error = &error as &dyn std::error::Error, "the outcome of a deploy could not be stored");
            return abandon(&here, instance);
        }
        match outcome {
            Ok(done) => {
                let snapshot = done.snapshot.is_some();
                // The first instance is no copy of the snapshot: who needs a fresh one, or secrets, has no use for it.
                // One that was booted of files that there were has been ended by its worker.
                let is_whole = !done.spec.manifest.deploys_without_secrets();
                let serves = version.info.reused.is_none() && is_whole && !(done.spec.manifest.fresh && snapshot);
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
            tracing::warn!(%function, version = %number, error = &error as &dyn std::error::Error, "notes of a deploy that is over stay in the store");
        }
    });
}

/// Has a worker prepare the version, from layers that there are already if `built`. Returns the last instance, the
/// phases, and the outcome.
async fn prepare(
    scheduler: &Scheduler,
    version: &NewVersion,
    source_key: &str,
    built: Option<BuiltLayers>,
) -> (InstanceId, Vec<PhaseTime>, Result<Done, ApiError>) {
    let turn = scheduler.preparing.acquire().await.ok();
    let mut preparation = Preparation::of(scheduler, version, source_key, built, turn);
    let limit = LIMIT + version.info.manifest.boot_timeout() * 2;
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
fn take_over(version: &NewVersion, spec: VersionSpec, snapshot: Option<SnapshotSummary>) -> Done {
    Done {
        instance: InstanceId::generate(),
        spec: VersionSpec {
            version: version.info.version,
            manifest: version.info.manifest.clone(),
            ..spec
        },
        snapshot,
        snapshot_error: None,
        no_room: false,
    }
}

struct Done {
    /// The version's first instance.
    instance: InstanceId,
    spec: VersionSpec,
    snapshot: Option<SnapshotSummary>,
    snapshot_error: Option<String>,
    /// Whether the snapshot is missing because the worker's disk is full.
    no_room: bool,
}

/// A version in preparation, on one worker at a time.
struct Preparation<'a> {
    /// Its turn among the versions prepared at once. A version that may boot for long releases it when it boots.
    turn: Option<SemaphorePermit<'a>>,
    scheduler: &'a Scheduler,
    version: &'a NewVersion,
    source_key: &'a str,
    /// Its layers, if they need not be built.
    built: Option<BuiltLayers>,
    /// The ask for its first instance. It avoids the workers on which it failed.
    ask: Ask,
    instance: InstanceId,
    phases: Phases,
    /// The fallback if no other worker does better: it serves, without a snapshot.
    so_far: Option<Done>,
}

impl<'a> Preparation<'a> {
    fn of(
        scheduler: &'a Scheduler,
        version: &'a NewVersion,
        source_key: &'a str,
        built: Option<BuiltLayers>,
        turn: Option<SemaphorePermit<'a>>,
    ) -> Self {
        Self {
            turn,
            scheduler,
            version,
            source_key,
            built,
            ask: Ask {
                gateway: rekindle_wire::ids::GatewayId::generate(),
                version: None,
                held: Vec::new(),
                force: Some(StartKind::Booted),
                avoid: Vec::new(),
                avoid_until: Millis(u64::MAX),
            },
            instance: InstanceId::generate(),
            phases: Phases::default(),
            so_far: None,
        }
    }

    /// Tries workers until one succeeds, the function turns out to be at fault, or no worker is left.
    async fn run(&mut self) -> Result<Done, ApiError> {
        let mut first_error = None;
        loop {
            let address = match self.room().await {
                Ok(address) => address,
                Err(no_room) => return self.so_far.take().ok_or_else(|| first_error.unwrap_or(no_room)),
            };
            let outcome = self.on(&address).await;
            let error = match outcome {
                Ok(done) if !done.no_room => return Ok(done),
                Ok(done) => {
                    tracing::warn!(function = %self.version.info.function, worker = address, "a worker has no room for a snapshot: another shall prepare the version");
                    self.so_far.get_or_insert(done);
                    None
                }
                Err(error) => {
                    let is_the_workers = matches!(error.code, ErrorCode::Internal | ErrorCode::Unavailable);
                    // A version that has booted elsewhere serves, whatever happens on another worker.
                    if !is_the_workers && self.so_far.is_none() {
                        return Err(error);
                    }
                    tracing::warn!(function = %self.version.info.function, worker = address, %error, "a worker could not prepare a version");
                    Some(error)
                }
            };
            first_error = first_error.or(error);
            self.ask.avoid.push(address);
            let may_go_on = self.ask.avoid.len() < WORKERS && self.ask.may_go_elsewhere(&self.scheduler.state().fleet);
            match (may_go_on, self.so_far.take(), &first_error) {
                (false, Some(done), _) => return Ok(done),
                (false, None, Some(error)) => return Err(error.clone()),
                (_, so_far, _) => self.so_far = so_far,
            }
            abandon(
                self.scheduler,
                std::mem::replace(&mut self.instance, InstanceId::generate()),
            );
            self.phases = Phases::default();
        }
    }

    /// Prepares the version on the worker at `address`. A worker that is no longer heard from is not waited for: its
    /// host may have vanished without notice.
    async fn on(&mut self, address: &str) -> Result<Done, ApiError> {
        let gone = until_gone(self.scheduler, self.instance.clone());
        tokio::select! {
            outcome = self.follow(address) => outcome,
            () = gone => Err(lost("it is not heard of any more")),
        }
    }

    /// Sends the order to the worker and records its progress.
    async fn follow(&mut self, address: &str) -> Result<Done, ApiError> {
        let Self { scheduler, version, .. } = *self;
        let VersionInfo {
            function,
            version: number,
            manifest,
            ..
        } = &version.info;
        let request = PrepareRequest {
            instance: self.instance.clone(),
            function: function.clone(),
            version: *number,
            uid: version.uid,
            manifest: manifest.clone(),
            source_key: self.source_key.to_owned(),
            sharing: scheduler.config.sharing,
            runtime_snapshot: runtime_snapshot(scheduler, function, manifest.base).await,
            built: self.built.clone(),
            secrets: scheduler.secrets.of(function, manifest)?,
        };
        let mut told = Told::order(scheduler, address, &request)
            .await
            .map_err(|why| lost(&why))?;
        loop {
            let event = told.next().await.map_err(|why| lost(&why))?;
            match event {
                PrepareEvent::Phase { phase } => {
                    if phase == VersionState::Booting && manifest.boots_slowly() {
                        // The preparation only waits from now on: others need not.
                        self.turn = None;
                    }
                    self.phases.enter(phase);
                    let times = &self.phases.times;
                    if let Err(error) = scheduler.store.set_state(function, *number, phase, times).await {
                        tracing::warn!(%function, error = &error as &dyn std::error::Error, "a deploy's phase could not be stored");
                    }
                }
                PrepareEvent::Done {
                    spec,
                    snapshot,
                    snapshot_error,
                    no_room,
                    runtime_snapshot,
                } => {
                    if spec.function != *function || spec.version != *number {
                        return Err(lost(&format!("it answered for {} {}", spec.function, spec.version)));
                    }
                    // The worker does not decide which user the version runs as, nor its limits.
                    if spec.uid != version.uid || spec.manifest != *manifest {
                        return Err(lost(
                            "it answered with another user or another fn.toml than the order's",
                        ));
                    }
                    if let Some(named) = runtime_snapshot {
                        keep_runtime_snapshot(scheduler, function, manifest.base, &named).await;
                    }
                    return Ok(Done {
                        instance: self.instance.clone(),
                        spec,
                        snapshot,
                        snapshot_error,
                        no_room,
                    });
                }
                PrepareEvent::Failed { error } => return Err(error),
            }
        }
    }

    /// Sets memory aside on a worker for the version's first instance, and waits for room for a while.
    async fn room(&self) -> Result<String, ApiError> {
        let Self { scheduler, version, .. } = *self;
        let nothing = LayerRef {
            digest: String::new(),
            tar_bytes: 0,
        };
        let spec = VersionSpec {
            function: version.info.function.clone(),
            version: version.info.version,
            manifest: version.info.manifest.clone(),
            uid: version.uid,
            rootfs: nothing.clone(),
            layer: nothing,
            snapshot: None,
            snapshot_digest: None,
            instruction_sets: InstructionSets::default(),
        };
        let live = LiveVersion { spec: spec.into() };
        let until = Instant::now() + ROOM_LIMIT;
        loop {
            let (decision, retiree) = {
                let mut state = scheduler.state();
                let now = scheduler.now();
                let decision = place(&state.fleet, &live, &self.ask, now);
                let retiree = match &decision {
                    Decision::Start { worker, kind } => {
                        let fleet = &mut state.fleet;
                        let (instance, kind) = (&self.instance, *kind);
                        fleet.add(
                            instance.clone(),
                            worker.clone(),
                            &live.spec,
                            kind,
                            Stage::Preparing,
                            now,
                        );
                        if let Some(address) = fleet.address_of(instance) {
                            return Ok(address);
                        }
                        None
                    }
                    Decision::Wait { free_up: Some(id), .. } => state.fleet.free_up(id),
                    _ => None,
                };
                (decision, retiree)
            };
            scheduler.recalls.notify_waiters();
            if let Some(retiree) = retiree {
                placing::retire(scheduler, retiree);
            }
            let never = matches!(decision, Decision::TooBig { .. } | Decision::OverQuota(_));
            if never || Instant::now() >= until {
                return Err(self.no_room(&decision));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn no_room(&self, decision: &Decision) -> ApiError {
        let message = match decision {
            Decision::OverQuota(over)
            | Decision::Wait {
                shortage: Shortage::Quota(over),
                ..
            } => return over.error(self.version.info.function.namespace(), None),
            Decision::Wait {
                shortage: Shortage::Workers,
                ..
            } => format!("{NO_WORKER}, and deploy again"),
            _ => format!(
                "no worker has the {} free that an instance needs: lower memory in fn.toml, or add a worker, and deploy again",
                self.version.info.manifest.memory
            ),
        };
        ApiError::new(ErrorCode::NoCapacity, message)
    }
}

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

/// The events that a worker sends while it carries out an order.
pub(crate) struct Told(BoxStream<'static, Result<String, LinesCodecError>>);

impl Told {
    /// Sends the order to the worker.
    ///
    /// # Errors
    /// Why the order could not be sent.
    pub(crate) async fn order(scheduler: &Scheduler, address: &str, order: &PrepareRequest) -> Result<Self, String> {
        let answer = scheduler.workers.prepare(address, order).await.map_err(|e| chain(&e))?;
        let bytes = answer.bytes_stream().map(|b| b.map_err(std::io::Error::other));
        let lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new_with_max_length(LINE_MAX));
        Ok(Self(lines.boxed()))
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// Why no more events will come.
    pub(crate) async fn next(&mut self) -> Result<PrepareEvent, String> {
        match self.0.next().await {
            Some(Ok(line)) => serde_json::from_str(&line).map_err(|e| format!("unreadable event: {e}")),
            Some(Err(e)) => Err(chain(&e)),
            None => Err("it ended without an outcome".to_owned()),
        }
    }
}

fn lost(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!("the worker that prepared it was lost ({why}): deploy again"),
    )
}

/// Waits until the worker on which the instance's memory was set aside has been given up.
pub(crate) async fn until_gone(scheduler: &Scheduler, instance: InstanceId) {
    let worker = scheduler
        .state()
        .fleet
        .instances
        .get(&instance)
        .map(|i| i.worker.clone());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let state = scheduler.state();
        let known = worker.as_ref().and_then(|worker| state.fleet.workers.get(worker));
        if known.is_none_or(|worker| worker.gone) {
            return;
        }
    }
}

/// Discards the first instance of a version that failed.
fn abandon(scheduler: &Scheduler, instance: InstanceId) {
    placing::kill(scheduler, instance);
}

/// Duration of each phase.
#[derive(Default)]
struct Phases {
    times: Vec<PhaseTime>,
    now: Option<(VersionState, Instant)>,
}

impl Phases {
    fn enter(&mut self, phase: VersionState) {
        self.leave();
        self.now = Some((phase, Instant::now()));
    }

    fn leave(&mut self) {
        if let Some((phase, since)) = self.now.take() {
            let ms = since.elapsed().as_secs_f64() * 1_000.0;
            self.times.push(PhaseTime { phase, ms });
        }
    }

    fn ended(mut self) -> Vec<PhaseTime> {
        self.leave();
        self.times
    }
}
