//! A version in preparation: which workers try, and what each reports.

use std::time::{Duration, Instant};

use rekindle_wire::api::{StartKind, VersionInfo, VersionState};
use rekindle_wire::internal::{BuiltLayers, LayerRef, PrepareEvent, PrepareRequest, VersionSpec};
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{ApiError, ErrorCode, InstanceId};
use tokio::sync::SemaphorePermit;

use super::phases::Phases;
use super::runtime_snapshot::{keep_runtime_snapshot, runtime_snapshot};
use super::worker::{PrepareEvents, until_gone};
use super::{PreparedVersion, abandon};
use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::fleet::Stage;
use crate::placement::{Decision, Shortage, SlotRequest, place};
use crate::placing;
use crate::refusal::NO_WORKER;
use crate::state::Scheduler;
use crate::store::NewVersion;

/// Longest wait for a worker with room.
const ROOM_LIMIT: Duration = Duration::from_secs(60);
/// Number of workers tried before a deploy fails through a worker's fault: its disk, its network, its end.
const WORKERS: usize = 3;

/// A version in preparation, on one worker at a time.
pub(super) struct Preparation<'a> {
    /// Its turn among the versions prepared at once. A version that may boot for long releases it when it boots.
    turn: Option<SemaphorePermit<'a>>,
    scheduler: &'a Scheduler,
    version: &'a NewVersion,
    source_key: &'a str,
    /// Its layers, if they need not be built.
    built: Option<BuiltLayers>,
    /// The ask for its first instance. It avoids the workers on which it failed.
    ask: SlotRequest,
    pub(super) instance: InstanceId,
    pub(super) phases: Phases,
    /// The fallback if no other worker does better: it serves, without a snapshot.
    pub(super) so_far: Option<PreparedVersion>,
}

impl<'a> Preparation<'a> {
    pub(super) fn of(
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
            ask: SlotRequest {
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
    pub(super) async fn run(&mut self) -> Result<PreparedVersion, ApiError> {
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
                    let function = &self.version.info.function;
                    let said = "a worker has no room for a snapshot: another shall prepare the version";
                    tracing::warn!(%function, worker = address, "{said}");
                    self.so_far.get_or_insert(done);
                    None
                }
                Err(error) => {
                    let is_the_workers = matches!(error.code, ErrorCode::Internal | ErrorCode::Unavailable);
                    // A version that has booted elsewhere serves, whatever happens on another worker.
                    if !is_the_workers && self.so_far.is_none() {
                        return Err(error);
                    }
                    let function = &self.version.info.function;
                    tracing::warn!(%function, worker = address, %error, "a worker could not prepare a version");
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
    async fn on(&mut self, address: &str) -> Result<PreparedVersion, ApiError> {
        let gone = until_gone(self.scheduler, self.instance.clone());
        tokio::select! {
            outcome = self.follow(address) => outcome,
            () = gone => Err(lost("it is not heard of any more")),
        }
    }

    /// Sends the order to the worker and records its progress.
    async fn follow(&mut self, address: &str) -> Result<PreparedVersion, ApiError> {
        let Self { scheduler, version, .. } = *self;
        let VersionInfo {
            function,
            version: number,
            config,
            ..
        } = &version.info;
        let worker = scheduler.state().fleet.worker_of(&self.instance);
        let ticket = worker.map(|worker| scheduler.orders.ticket(&worker, &self.instance, function, *number));
        let request = PrepareRequest {
            ticket,
            instance: self.instance.clone(),
            function: function.clone(),
            version: *number,
            uid: version.uid,
            config: config.clone(),
            source_key: self.source_key.to_owned(),
            sharing: scheduler.config.sharing,
            runtime_snapshot: runtime_snapshot(scheduler, function, config.base).await,
            built: self.built.clone(),
            secrets: scheduler.secrets.of(function, config)?,
            snapshot_key: scheduler.seals.of(function)?,
        };
        let mut told = PrepareEvents::order(scheduler, address, &request)
            .await
            .map_err(|why| lost(&why))?;
        loop {
            let event = told.next().await.map_err(|why| lost(&why))?;
            match event {
                PrepareEvent::Phase { phase } => {
                    if phase == VersionState::Booting && config.boots_slowly() {
                        // The preparation only waits from now on: others need not.
                        self.turn = None;
                    }
                    self.phases.enter(phase);
                    let times = &self.phases.times;
                    if let Err(error) = scheduler.store.set_state(function, *number, phase, times).await {
                        let error: &dyn std::error::Error = &error;
                        tracing::warn!(%function, error, "a deploy's phase could not be stored");
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
                    if spec.uid != version.uid || spec.config != *config {
                        return Err(lost(
                            "it answered with another user or another fn.toml than the order's",
                        ));
                    }
                    if let Some(named) = runtime_snapshot {
                        keep_runtime_snapshot(scheduler, function, config.base, &named).await;
                    }
                    return Ok(PreparedVersion {
                        instance: self.instance.clone(),
                        spec,
                        snapshot,
                        snapshot_error,
                        no_room,
                        key: request.snapshot_key,
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
            config: version.info.config.clone(),
            uid: version.uid,
            rootfs: nothing.clone(),
            layer: nothing,
            snapshot: None,
            snapshot_digest: None,
            instruction_sets: InstructionSets::default(),
            reaper: false,
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
                "no worker has the {} free that an instance needs: lower memory in fn.toml, or add a worker, and \
                 deploy again",
                self.version.info.config.memory
            ),
        };
        ApiError::new(ErrorCode::NoCapacity, message)
    }
}

fn lost(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!("the worker that prepared it was lost ({why}): deploy again"),
    )
}
