//! Carries out placements: leases existing instances, starts missing ones, queues asks that must wait, and wakes them
//! when something changes.

use std::time::{Duration, Instant};

use rekindle_wire::api::StartKind;
use rekindle_wire::function_config::ByteSize;
use rekindle_wire::internal::{Placement, PlacementRequest, StartInstance};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::catalog::LiveVersion;
use crate::cluster::ClusterState;
use crate::fleet::Stage;
use crate::fleet::retire::Retiree;
use crate::halting;
use crate::placement::{AVOID_FOR, Decision, Shortage, SlotRequest, place, place_behind};
use crate::refusal::NO_WORKER;
use crate::renewal::refused::note_lacking;
use crate::state::Scheduler;
use crate::waiting::{DeferredWaiters, PER_VERSION, PlacementResult, QueueKey, Waiter};

/// Longest wait of an ask, whatever the gateway says.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Longest time for a worker to accept a start. The call's own limit is shorter.
const LAUNCH_LIMIT: Duration = Duration::from_secs(20);

/// Number of workers asked for an instance before the last error is returned.
const STARTS: usize = 3;

/// An instance to ask a worker for, and the waiter for its placement.
struct Launch {
    address: String,
    start: StartInstance,
    placement: Placement,
    ask: SlotRequest,
    answer: oneshot::Sender<PlacementResult>,
}

/// Work that follows from a change in memory, to be done without the lock.
#[derive(Default)]
pub(crate) struct DeferredWork {
    launches: Vec<Launch>,
    retirees: Vec<Retiree>,
    recalled: bool,
}

/// Answers a gateway's request for a slot.
///
/// # Errors
/// - `function_not_found`
/// - `bad_request` for a start that is not possible
/// - `throttled` if the function stayed at its maximum for the whole wait, or its queue is full
/// - `quota_exceeded` if its namespace stayed at its quota for the whole wait
/// - `no_capacity` if no worker had room
/// - `unavailable` if workers refuse
pub(crate) async fn placement(scheduler: &Scheduler, request: PlacementRequest) -> PlacementResult {
    let asked = Instant::now();
    let mut was_queued = false;
    let answer = answer(scheduler, request, &mut was_queued).await;
    scheduler.metrics.placed(&answer, asked.elapsed(), was_queued);
    answer
}

async fn answer(scheduler: &Scheduler, request: PlacementRequest, was_queued: &mut bool) -> PlacementResult {
    let wanted = QueueKey {
        function: request.function,
        version: request.version,
    };
    if request.force == Some(StartKind::Restored) {
        check_snapshot(scheduler, &wanted).await?;
    }
    let wait = Duration::from_millis(request.wait_ms).min(WAIT_LIMIT);
    let (answer, placed) = oneshot::channel();
    let waiter = Waiter {
        ask: SlotRequest {
            gateway: request.gateway,
            version: request.version,
            held: request.held,
            force: request.force,
            avoid: request.avoid,
            avoid_until: scheduler.now().plus(AVOID_FOR),
        },
        answer,
    };
    let ask = waiter.ask.clone();
    let (todo, queued) = {
        let mut state = scheduler.state();
        let now = scheduler.now();
        for gone in &request.gone {
            state.fleet.found_gone(gone, &ask.gateway, now);
        }
        let live = state.catalog.wanted(&wanted.function, wanted.version)?;
        check_force(&live, request.force)?;
        let mut todo = DeferredWork::default();
        let names = QueueKey::names_of(&state.catalog, &live);
        // First come, first served.
        let must_wait = if state.queue.is_waited_for(&wanted) {
            Some(waiter)
        } else {
            let ahead = names.iter().map(|name| state.queue.waiting_as(name)).sum();
            let waiting = attempt(scheduler, &mut state, &live, ahead, waiter, &mut todo)?;
            waiting.map(|(waiter, _)| waiter)
        };
        let queued = must_wait.is_some();
        if let Some(waiter) = must_wait {
            state.queue.push(&wanted, waiter).map_err(|_| queue_full(&live))?;
        }
        if !request.gone.is_empty() {
            pump_locked(scheduler, &mut state, None, &mut todo);
        } else if queued && state.fleet.moves_some_of(&live) {
            // Those before it may wait for an instance that is on its way, which has no room for this one.
            pump_locked(scheduler, &mut state, Some(&names), &mut todo);
        }
        (todo, queued)
    };
    todo.run(scheduler);
    *was_queued = queued;
    let limit = if queued { wait } else { LAUNCH_LIMIT };
    match tokio::time::timeout(limit, placed).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(ApiError::new(
            ErrorCode::Unavailable,
            "the scheduler is shutting down: try again",
        )),
        Err(_) => Err(what_is_missing(scheduler, &wanted.function, &ask)),
    }
}

/// Why an ask waited in vain.
fn what_is_missing(scheduler: &Scheduler, function: &FunctionId, ask: &SlotRequest) -> ApiError {
    let state = scheduler.state();
    let live = match state.catalog.wanted(function, ask.version) {
        Ok(live) => live,
        Err(error) => return error,
    };
    let shortage = match place(&state.fleet, &live, ask, scheduler.now()) {
        Decision::Wait { shortage, .. } => shortage,
        Decision::OverQuota(over) => Shortage::Quota(over),
        // Something became free just now, or others wait ahead of this one.
        _ => Shortage::Instances,
    };
    shortage_error(shortage, &live)
}

/// Serves waiting asks as far as possible after a change. Call it without the lock.
pub(crate) fn pump(scheduler: &Scheduler) {
    let mut todo = DeferredWork::default();
    pump_locked(scheduler, &mut scheduler.state(), None, &mut todo);
    todo.run(scheduler);
}

/// Serves those asks as far as possible that may have waited long enough for an instance that is on its way. Call it
/// without the lock.
pub(crate) fn pump_waiting_for_migrations(scheduler: &Scheduler) {
    let mut todo = DeferredWork::default();
    {
        let mut state = scheduler.state();
        let ClusterState {
            queue, fleet, catalog, ..
        } = &*state;
        if fleet.moving() == 0 {
            return;
        }
        let moves = |wanted: &&QueueKey| {
            let live = catalog.wanted(&wanted.function, wanted.version);
            live.is_ok_and(|live| fleet.moves_some_of(&live))
        };
        let names: Vec<_> = queue.names().filter(moves).cloned().collect();
        if !names.is_empty() {
            pump_locked(scheduler, &mut state, Some(&names), &mut todo);
        }
    }
    todo.run(scheduler);
}

/// Retires an instance in a task of its own, and gives what is free then to who waits.
pub(crate) fn retire(scheduler: &Scheduler, retiree: Retiree) {
    let here = scheduler.clone();
    scheduler.tasks.spawn(async move {
        halting::retire(&here, retiree).await;
        pump(&here);
    });
}

/// Kills an instance in a task of its own, and gives what is free then to who waits.
pub(crate) fn kill(scheduler: &Scheduler, instance: InstanceId) {
    let here = scheduler.clone();
    scheduler.tasks.spawn(async move {
        halting::kill(&here, &instance).await;
        pump(&here);
    });
}

/// `only` names the queues that something has changed for.
fn pump_locked(scheduler: &Scheduler, state: &mut ClusterState, only: Option<&[QueueKey]>, todo: &mut DeferredWork) {
    let ClusterState { queue, fleet, .. } = &mut *state;
    let mut turns = queue.turns(only, || fleet.held());
    if let Some(claimant) = fleet.claimant().cloned()
        && queue.waiting_for(&claimant) == 0
    {
        fleet.end_claim(&claimant);
    }
    let mut migrating = DeferredWaiters::default();
    // Each function that can be given something gets one thing, and takes its place again.
    while let Some((wanted, held, served)) = turns.pop() {
        let Some(waiter) = state.queue.pop(&wanted) else {
            continue;
        };
        let live = match state.catalog.wanted(&wanted.function, wanted.version) {
            Ok(live) => live,
            Err(error) => {
                drop(waiter.answer.send(Err(error)));
                turns.push(wanted, held, served);
                continue;
            }
        };
        let launches = todo.launches.len();
        match attempt(scheduler, state, &live, migrating.waiting_for(&live), waiter, todo) {
            Ok(None) if todo.launches.len() > launches => {
                state.fleet.end_claim(&wanted.function);
                let served = state.queue.was_given_room(&wanted);
                turns.push(wanted, held.saturating_add(live.memory()), served);
            }
            // If it is an error, the waiter has been told already.
            Ok(None) | Err(_) => turns.push(wanted, held, served),
            Ok(Some((waiter, Shortage::Migration))) => {
                migrating.push(&wanted, &live, waiter);
                turns.push(wanted, held, served);
            }
            Ok(Some((waiter, _))) => state.queue.put_back(&wanted, waiter),
        }
    }
    state.queue.put_all_back(migrating);
}

/// Decides one ask and records the work to do. Returns the waiter if it must wait. `ahead` others wait for instances
/// that are on their way.
fn attempt(
    scheduler: &Scheduler,
    state: &mut ClusterState,
    live: &LiveVersion,
    ahead: usize,
    waiter: Waiter,
    todo: &mut DeferredWork,
) -> Result<Option<(Waiter, Shortage)>, ApiError> {
    let now = scheduler.now();
    match place_behind(ahead, &state.fleet, live, &waiter.ask, now) {
        Decision::Use(id) => {
            let placement = state.fleet.grant(&id, &waiter.ask.gateway, live, now);
            let Some(placement) = placement else {
                return Err(ApiError::new(
                    ErrorCode::Internal,
                    format!("instance {id} has no worker"),
                ));
            };
            if waiter.answer.send(Ok(placement)).is_err() {
                state.fleet.revoke(&id, &waiter.ask.gateway);
            }
            Ok(None)
        }
        Decision::Start { worker, kind } => {
            let id = InstanceId::generate();
            let ticket = scheduler
                .orders
                .ticket(&worker, &id, &live.spec.function, live.spec.version);
            state
                .fleet
                .add(id.clone(), worker, &live.spec, kind, Stage::Starting, now);
            let address = state.fleet.address_of(&id);
            let placement = state.fleet.grant(&id, &waiter.ask.gateway, live, now);
            let (Some(address), Some(placement)) = (address, placement) else {
                return Err(ApiError::new(
                    ErrorCode::Internal,
                    format!("instance {id} has no worker"),
                ));
            };
            todo.launches.push(Launch {
                address,
                start: StartInstance {
                    instance: id,
                    start: kind,
                    park: false,
                    spec: (*live.spec).clone(),
                    secrets: Vec::new(),
                    snapshot_key: None,
                    ticket: Some(ticket),
                },
                placement,
                ask: waiter.ask,
                answer: waiter.answer,
            });
            Ok(None)
        }
        Decision::Wait { shortage, free_up } => {
            match (free_up, shortage) {
                (Some(id), _) => {
                    let retiree = match shortage {
                        Shortage::Memory => state.fleet.step_down(&id),
                        _ => state.fleet.free_up(&id),
                    };
                    if retiree.is_none() && shortage == Shortage::Memory {
                        // The lease may be in use, and would go to the next ask of its own function.
                        state.fleet.claim(live, now);
                    }
                    todo.recalled |= retiree.is_none();
                    todo.retirees.extend(retiree);
                }
                (None, Shortage::Memory) => todo.recalled |= state.fleet.claim(live, now),
                (None, _) => {}
            }
            Ok(Some((waiter, shortage)))
        }
        Decision::OverQuota(over) => {
            let error = over.error(live.spec.function.namespace(), None);
            drop(waiter.answer.send(Err(error.clone())));
            Err(error)
        }
        Decision::TooBig { largest } => {
            let error = ApiError::new(
                ErrorCode::NoCapacity,
                format!(
                    "{} needs {} of memory and the largest worker has {}: lower memory in fn.toml or add a larger \
                     worker",
                    live.spec.function,
                    live.spec.config.memory,
                    ByteSize(largest)
                ),
            );
            drop(waiter.answer.send(Err(error.clone())));
            Err(error)
        }
    }
}

impl DeferredWork {
    /// Does the work in tasks of its own: it must not end because a gateway stopped waiting.
    pub(crate) fn run(self, scheduler: &Scheduler) {
        if self.recalled {
            scheduler.recalls.notify_waiters();
        }
        for retiree in self.retirees {
            retire(scheduler, retiree);
        }
        for launch in self.launches {
            let here = scheduler.clone();
            let task = async move { launch.run(&here).await }.in_current_span();
            scheduler.tasks.spawn(task);
        }
    }
}

impl Launch {
    async fn run(mut self, scheduler: &Scheduler) {
        if self.start.start == StartKind::Booted && self.ask.force.is_none() {
            // The version has a snapshot that cannot be restored where there is room.
            note_lacking(scheduler, &self.start.spec).await;
        }
        let function = &self.start.spec.function;
        let secrets = scheduler.secrets.of(function, &self.start.spec.config);
        match secrets.and_then(|secrets| Ok((secrets, scheduler.seals.of(function)?))) {
            Ok((secrets, key)) => (self.start.secrets, self.start.snapshot_key) = (secrets, key),
            Err(error) => return self.refuse(scheduler, error),
        }
        let id = &self.start.instance;
        let span = tracing::info_span!(
            "call worker",
            otel.kind = "client",
            rekindle.role = "scheduler",
            server.address = self.address,
            rekindle.instance = %id,
            otel.status_code = tracing::field::Empty,
        );
        let starting = scheduler.workers.start(&self.address, &self.start);
        let answer = match starting.instrument(span.clone()).await {
            Ok(()) => Ok(self.placement),
            Err(error) => {
                span.record("otel.status_code", "ERROR");
                tracing::warn!(
                    instance = %id, error = &error as &dyn std::error::Error,
                    "an instance could not be started"
                );
                scheduler.state().fleet.forget(id, scheduler.now());
                if self.ask.avoid_for(&self.address, scheduler.now()) < STARTS && error.may_do_elsewhere() {
                    return self.again(scheduler);
                }
                Err(ApiError::new(
                    ErrorCode::Unavailable,
                    format!("{error}: try again; `fn status` shows the workers"),
                ))
            }
        };
        let failed = answer.is_err();
        if self.answer.send(answer).is_err() {
            scheduler.state().fleet.revoke(id, &self.ask.gateway);
        } else if !failed {
            return;
        }
        pump(scheduler);
    }

    /// Answers with an error that another worker would have, too.
    fn refuse(self, scheduler: &Scheduler, error: ApiError) {
        tracing::warn!(instance = %self.start.instance, %error, "an instance could not be started");
        scheduler.state().fleet.forget(&self.start.instance, scheduler.now());
        drop(self.answer.send(Err(error)));
        pump(scheduler);
    }

    /// Asks elsewhere: nothing of the invocation has reached a function.
    fn again(self, scheduler: &Scheduler) {
        let (ask, answer) = (self.ask, self.answer);
        let wanted = QueueKey {
            function: self.start.spec.function,
            version: ask.version,
        };
        scheduler.state().queue.put_back(&wanted, Waiter { ask, answer });
        pump(scheduler);
    }
}

/// Says why a version has no snapshot, if it should be restored.
async fn check_snapshot(scheduler: &Scheduler, wanted: &QueueKey) -> Result<(), ApiError> {
    let QueueKey { function, version } = wanted;
    let live = scheduler.state().catalog.wanted(function, *version).ok();
    let Some(live) = live.filter(|live| live.spec.snapshot.is_none()) else {
        return Ok(());
    };
    let version = scheduler.store.version(function, live.spec.version).await;
    // Without the store, it is said without the reason.
    let why = version.ok().flatten().and_then(|version| version.snapshot_error);
    Err(no_snapshot(&live, why.as_deref()))
}

fn no_snapshot(live: &LiveVersion, why: Option<&str>) -> ApiError {
    let why = why.unwrap_or("set snapshot = true in fn.toml and deploy again");
    ApiError::new(
        ErrorCode::BadRequest,
        format!(
            "version {} of {} has no snapshot to restore, but can be \"booted\": {why}",
            live.spec.version, live.spec.function
        ),
    )
}

fn check_force(live: &LiveVersion, force: Option<StartKind>) -> Result<(), ApiError> {
    match force {
        None | Some(StartKind::Booted) => Ok(()),
        Some(StartKind::Restored) if live.spec.snapshot.is_some() => Ok(()),
        Some(StartKind::Restored) => Err(no_snapshot(live, None)),
        Some(kind) => Err(ApiError::new(
            ErrorCode::BadRequest,
            format!("a start cannot be forced to be \"{kind}\": use booted or restored"),
        )),
    }
}

fn queue_full(live: &LiveVersion) -> ApiError {
    ApiError::new(
        ErrorCode::Throttled,
        format!(
            "{} has {PER_VERSION} invocations waiting already: send less, or raise max_instances or concurrency in \
             fn.toml",
            live.spec.function
        ),
    )
}

fn shortage_error(shortage: Shortage, live: &LiveVersion) -> ApiError {
    let spec = &live.spec;
    match shortage {
        Shortage::Instances => ApiError::new(
            ErrorCode::Throttled,
            format!(
                "all {} instances of {} stayed busy: try again, or raise max_instances or concurrency in fn.toml",
                spec.config.max_instances, spec.function
            ),
        ),
        Shortage::Migration => ApiError::new(
            ErrorCode::Throttled,
            format!(
                "the instance of {} that moves to another worker did not arrive in time: try again",
                spec.function
            ),
        ),
        Shortage::Memory => ApiError::new(
            ErrorCode::NoCapacity,
            format!(
                "no worker has the {} free that an instance of {} needs: try again, or add a worker",
                spec.config.memory, spec.function
            ),
        ),
        Shortage::Workers => ApiError::new(ErrorCode::NoCapacity, NO_WORKER),
        Shortage::Quota(over) => over.error(spec.function.namespace(), Some(1)),
    }
}
