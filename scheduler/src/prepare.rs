//! Makes an accepted version live: a worker builds, boots, warms up, snapshots and rehearses it and tells each step;
//! this writes them down.
//!
//! ```text
//! Queued ─> Building ─> Booting ─> Warming ─> Snapshotting ─> Rehearsing ─> Live
//!    each of them ─> Failed   (also: worker gone, time over)
//! ```
//!
//! It has ten minutes and two boots from when its turn has come. Where a worker is lost or cannot go on for a reason
//! of its own, another begins anew.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use rekindle_wire::api::{PhaseTime, SnapshotSummary, StartKind, VersionInfo, VersionState};
use rekindle_wire::internal::{LayerRef, PrepareEvent, PrepareRequest, RuntimeSnapshot, Sharing, VersionSpec};
use rekindle_wire::manifest::Runtime;
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{ApiError, ErrorCode, FunctionName, InstanceId};
use tokio::sync::{OwnedSemaphorePermit, SemaphorePermit};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::digests;
use crate::fleet::{LiveVersion, Millis, Stage};
use crate::placement::{Ask, Decision, Shortage, place};
use crate::placing::{NO_WORKER, pump};
use crate::reaper;
use crate::state::Scheduler;
use crate::store::{NewVersion, StoreError};

/// The longest all of it may take, beside two boots.
const LIMIT: Duration = Duration::from_secs(600);
/// The longest to wait for a worker with room.
const ROOM_LIMIT: Duration = Duration::from_secs(60);
/// Workers that are tried before a deploy fails for what is a worker's fault and not the function's: its disk, its network, its end.
const WORKERS: usize = 3;
/// How often it is looked whether the worker is still heard of.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// One event's line; error messages carry a build's last output.
const LINE_MAX: usize = 1 << 20;

/// Prepares a version in a task of its own. `place` is its place among the deploys under way.
pub(crate) fn begin(scheduler: &Scheduler, version: NewVersion, source_key: String, place: OwnedSemaphorePermit) {
    let here = scheduler.clone();
    scheduler.tasks.spawn(async move {
        let VersionInfo { function, version: number, .. } = version.info.clone();
        let _place = place;
        let Ok(turn) = here.preparing.acquire().await else {
            return;
        };
        let mut preparation = Preparation::of(&here, &version, &source_key, turn);
        let limit = LIMIT + version.info.manifest.boot_timeout() * 2;
        let outcome = tokio::time::timeout(limit, preparation.run()).await;
        let Preparation {
            instance,
            phases,
            so_far,
            ..
        } = preparation;
        let outcome = outcome.unwrap_or_else(|_| {
            so_far.ok_or_else(|| ApiError::new(
                ErrorCode::BuildFailed,
                format!(
                    "it was not ready within {} minutes: make its dependencies or its start smaller, and deploy again",
                    limit.as_secs() / 60
                ),
            ))
        });
        if outcome.as_ref().is_ok_and(|done| done.instance != instance) {
            // Of a worker that did no better.
            abandon(&here, instance.clone());
        }
        let phases = phases.ended();
        here.metrics.deployed(outcome.is_ok(), &phases);
        let stored = match &outcome {
            Ok(done) => {
                here.store
                    .set_live(&done.spec, done.snapshot.as_ref(), done.snapshot_error.as_deref(), &phases)
                    .await
            }
            Err(error) => here.store.set_failed(&function, number, error, &phases).await,
        };
        if let Err(error) = stored {
            tracing::error!(%function, version = %number, error = &error as &dyn std::error::Error, "the outcome of a deploy could not be stored");
            return abandon(&here, instance);
        }
        match outcome {
            Ok(done) => {
                tracing::info!(%function, version = %number, snapshot = done.snapshot.is_some(), "a version went live");
                {
                    let mut state =here.state();
                    let now = here.now();
                    state.catalog.add(done.spec);
                    state.fleet.switch_to(&function, number, now);
                }
                // Of a worker of before: it told none.
                here.tasks.spawn(digests::complete(here.clone()));
                here.recalls.notify_waiters();
                pump(&here);
            }
            Err(error) => {
                tracing::warn!(%function, version = %number, %error, "a version failed");
                abandon(&here, instance);
            }
        }
        // If this fails the next collection ends it.
        if let Err(error) = here.objects.end_deploy(&function, number).await {
            tracing::warn!(%function, version = %number, error = &error as &dyn std::error::Error, "notes of a deploy that is over stay in the store");
        }
    });
}

struct Done {
    /// The version's first instance.
    instance: InstanceId,
    spec: VersionSpec,
    snapshot: Option<SnapshotSummary>,
    snapshot_error: Option<String>,
    /// Whether there is no snapshot for want of room on the worker's disk.
    no_room: bool,
}

/// A version on its way, on one worker at a time.
struct Preparation<'a> {
    /// Its turn among those that are prepared at once; given up once it boots, where that may take long.
    turn: Option<SemaphorePermit<'a>>,
    scheduler: &'a Scheduler,
    version: &'a NewVersion,
    source_key: &'a str,
    /// For its first instance; passes over the workers that it failed on.
    ask: Ask,
    instance: InstanceId,
    phases: Phases,
    /// What comes of it if no other worker does better: it serves, without a snapshot.
    so_far: Option<Done>,
}

impl<'a> Preparation<'a> {
    fn of(scheduler: &'a Scheduler, version: &'a NewVersion, source_key: &'a str, turn: SemaphorePermit<'a>) -> Self {
        Self {
            turn: Some(turn),
            scheduler,
            version,
            source_key,
            ask: Ask {
                gateway: rekindle_wire::ids::GatewayId::generate(),
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

    /// Until a worker has done it, or it is the function that is at fault, or there is no worker left to try.
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
                    // What has booted elsewhere serves, whatever another meets.
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

    /// Has the worker at `address` do it. One that is not heard of any more is not waited for: its host may be gone without a word.
    async fn on(&mut self, address: &str) -> Result<Done, ApiError> {
        let gone = until_gone(self.scheduler, self.instance.clone());
        tokio::select! {
            outcome = self.follow(address) => outcome,
            () = gone => Err(lost("it is not heard of any more")),
        }
    }

    /// Asks the worker, and writes down how far it is.
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
            runtime_snapshot: runtime_snapshot(scheduler, function, manifest.runtime).await,
            built: None,
        };
        let mut told = Told::order(scheduler, address, &request)
            .await
            .map_err(|why| lost(&why))?;
        loop {
            let event = told.next().await.map_err(|why| lost(&why))?;
            match event {
                PrepareEvent::Phase { phase } => {
                    if phase == VersionState::Booting && manifest.boots_slowly() {
                        // It only waits from now on: others need not.
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
                    // As whom it runs, and within which limits, is not the worker's to say.
                    if spec.uid != version.uid || spec.manifest != *manifest {
                        return Err(lost(
                            "it answered with another user or another fn.toml than the order's",
                        ));
                    }
                    if let Some(named) = runtime_snapshot {
                        keep_runtime_snapshot(scheduler, function, manifest.runtime, &named).await;
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

    /// Sets memory aside on a worker for the version's first instance, waiting a while for room.
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
                reaper::retire(scheduler, retiree);
            }
            let too_big = matches!(decision, Decision::TooBig { .. });
            if too_big || Instant::now() >= until {
                return Err(ApiError::new(ErrorCode::NoCapacity, self.no_room(&decision)));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn no_room(&self, decision: &Decision) -> String {
        match decision {
            Decision::Wait {
                shortage: Shortage::Workers,
                ..
            } => format!("{NO_WORKER}, and deploy again"),
            _ => format!(
                "no worker has the {} free that an instance needs: lower memory in fn.toml, or add a worker, and deploy again",
                self.version.info.manifest.memory
            ),
        }
    }
}

/// Whose snapshot of its runtime a function's versions begin as: its own, or that of all. `None` where they share none.
fn shares(sharing: Sharing, function: &FunctionName) -> Option<Option<&FunctionName>> {
    match sharing {
        Sharing::None => None,
        Sharing::Versions => Some(Some(function)),
        Sharing::Functions => Some(None),
    }
}

/// The snapshot of its runtime that a version of this function is to begin as, where there is one.
pub(crate) async fn runtime_snapshot(
    scheduler: &Scheduler,
    function: &FunctionName,
    runtime: Runtime,
) -> Option<RuntimeSnapshot> {
    let of = shares(scheduler.config.sharing, function)?;
    let unread = |error: &StoreError| {
        let error = error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "which snapshot of its runtime a version begins as could not be read"
        );
    };
    let known = scheduler.store.runtime_snapshot(runtime, of).await;
    known.inspect_err(unread).ok().flatten()
}

/// Keeps which one it began as.
pub(crate) async fn keep_runtime_snapshot(
    scheduler: &Scheduler,
    function: &FunctionName,
    runtime: Runtime,
    named: &RuntimeSnapshot,
) {
    let Some(of) = shares(scheduler.config.sharing, function) else {
        return;
    };
    if let Err(error) = scheduler.store.keep_runtime_snapshot(runtime, of, named).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "which snapshot of its runtime versions begin as could not be kept"
        );
    }
}

/// What a worker tells while it carries out an order.
pub(crate) struct Told(BoxStream<'static, Result<String, LinesCodecError>>);

impl Told {
    /// Asks the worker.
    ///
    /// # Errors
    /// Why it cannot be asked.
    pub(crate) async fn order(scheduler: &Scheduler, address: &str, order: &PrepareRequest) -> Result<Self, String> {
        let answer = scheduler.workers.prepare(address, order).await.map_err(|e| chain(&e))?;
        let bytes = answer.bytes_stream().map(|b| b.map_err(std::io::Error::other));
        let lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new_with_max_length(LINE_MAX));
        Ok(Self(lines.boxed()))
    }

    /// What it tells next.
    ///
    /// # Errors
    /// Why nothing more is heard of it.
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

/// Waits until the worker that an instance was set aside on has been given up.
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

/// Lets go of the first instance of a version that did not come to be.
fn abandon(scheduler: &Scheduler, instance: InstanceId) {
    reaper::kill(scheduler, instance);
}

/// How long each phase took.
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

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        text = format!("{text}: {c}");
        cause = c.source();
    }
    text
}
