//! Live migration of an instance to another worker.
//!
//! ```text
//! prepare   both workers get ready; the instance serves on, and its room on the target is set aside
//! recall    its lease is recalled: from now on invocations wait here for it (see `fleet/incoming.rs`)
//! leave     the source describes it, the target restores it, the copy runs
//! switch    it belongs to the target from now on, and waiting invocations are sent there
//! ```

use std::time::{Duration, Instant};

use rekindle_wire::api::{MigrateRequest, Migration};
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::migration::{ExpectedInstance, MigrationKind, MigrationPhases, SettleLimit, SourceOrder};
use rekindle_wire::{ApiError, ErrorCode, InstanceId, MigrationId, WorkerId};

use crate::catalog::ClaimedVersion;
use crate::clock::Millis;
use crate::cluster::ClusterState;
use crate::fleet::moves::{PlannedMove, Whereabouts};
use crate::placing::pump;
use crate::state::Scheduler;
use crate::worker::WorkerError;

/// How long invocations in it may take to end, unless the caller says otherwise.
const SETTLE: Duration = Duration::from_secs(10);
const SETTLE_MAX: Duration = Duration::from_secs(300);
/// How long a gateway may take to return its lease once nothing is in flight. The worker rejects what it still sends.
const RECALL_LIMIT: Duration = Duration::from_secs(2);
const RECALL_PAUSE: Duration = Duration::from_millis(1);
/// After the source's answer was lost: until reports that were under way have come, and how long others are waited for.
const REPORTS_COME: Duration = Duration::from_secs(2);
const REPORTS_LIMIT: Duration = Duration::from_secs(60);
const REPORTS_PAUSE: Duration = Duration::from_millis(50);

/// Moves an instance, or a copy of it.
///
/// # Errors
/// `not_found`, `conflict`, `no_capacity` or `unavailable`: the instance is where it was, as if nothing had happened.
/// `migration_lost`: it is gone.
pub(crate) async fn migrate(
    scheduler: &Scheduler,
    instance: &InstanceId,
    to: Option<&WorkerId>,
    request: &MigrateRequest,
) -> Result<Migration, ApiError> {
    let settle = request.settle_ms.map_or(SETTLE, Duration::from_millis).min(SETTLE_MAX);
    let kind = if request.clone {
        MigrationKind::Clone(InstanceId::generate())
    } else {
        MigrationKind::Move
    };
    let planned = scheduler.state().fleet.plan_move(instance, to, &kind)?;
    // The move is completed even if the caller goes away in the middle.
    let here = scheduler.clone();
    let task = scheduler
        .tasks
        .spawn(async move { execute(&here, planned, kind, settle).await });
    let interrupted = |_| {
        ApiError::new(
            ErrorCode::Internal,
            "the migration was interrupted: check where the instance runs",
        )
    };
    task.await.map_err(interrupted)?
}

/// Moves an instance off a worker that is `what` (hot, draining) on the platform's own account: to `to`, or to where
/// there is most room. It is not tried again before `again`, whatever the outcome. `told` receives whether it has
/// moved.
pub(crate) fn move_off(
    scheduler: &Scheduler,
    state: &mut ClusterState,
    what: &'static str,
    (instance, to): (InstanceId, Option<&WorkerId>),
    again: Millis,
    told: impl FnOnce(&Scheduler, bool) + Send + 'static,
) {
    state.fleet.leave_alone(&instance, again);
    let planned = match state.fleet.plan_move(&instance, to, &MigrationKind::Move) {
        Ok(planned) => planned,
        Err(error) => {
            state.fleet.leave_behind(&instance);
            scheduler.recalls.notify_waiters();
            return tracing::info!(%instance, %error, "it cannot move off its {what} worker");
        }
    };
    let here = scheduler.clone();
    scheduler.tasks.spawn(async move {
        let from = planned.from.clone();
        let moved = execute(&here, planned, MigrationKind::Move, SETTLE).await;
        told(&here, moved.is_ok());
        match moved {
            Ok(moved) => tracing::info!(%instance, %from, to = %moved.to, "moved off a {what} worker"),
            Err(error) => tracing::warn!(%instance, %from, %error, "not moved off a {what} worker: it stays there"),
        }
    });
}

/// Carries out the plan.
///
/// # Errors
/// As for [`migrate`].
async fn execute(
    scheduler: &Scheduler,
    planned: PlannedMove,
    kind: MigrationKind,
    settle: Duration,
) -> Result<Migration, ApiError> {
    let began = Instant::now();
    let order = SourceOrder {
        id: MigrationId::generate(),
        instance: planned.instance.clone(),
        to: planned.to_address.clone(),
        kind: kind.clone(),
    };
    let moved = carry_out(scheduler, &planned, order, settle).await;
    finish(scheduler, &kind, &planned, &moved);
    let phases = moved?;
    Ok(Migration {
        instance: match kind {
            MigrationKind::Move => planned.instance,
            MigrationKind::Clone(copy) => copy,
        },
        from: planned.from,
        to: planned.to,
        took_ms: began.elapsed().as_secs_f64() * 1e3,
        departed: phases.clone(),
        phases,
    })
}

async fn carry_out(
    scheduler: &Scheduler,
    planned: &PlannedMove,
    order: SourceOrder,
    settle: Duration,
) -> Result<MigrationPhases, ApiError> {
    let (workers, source) = (&scheduler.workers, planned.from_address.as_str());
    let known = scheduler.state().catalog.known(&planned.function, planned.version);
    let (ClaimedVersion::Live(version) | ClaimedVersion::Older(version)) = known else {
        let message = format!("{} runs a version that is gone, and does not move", order.instance);
        return Err(ApiError::new(ErrorCode::Conflict, message));
    };
    let secrets = scheduler.secrets.of(&planned.function, &version.spec.config)?;
    let snapshot_key = scheduler.seals.of(&planned.function)?;
    if (!secrets.is_empty() || snapshot_key.is_some()) && scheduler.config.issuing.is_none() {
        let what = match snapshot_key {
            None => "holds secrets, which do",
            Some(_) => "is of a namespace whose snapshots are encrypted, and so its memory does",
        };
        let message = format!(
            "{} {what} not leave a worker unencrypted: it stays; set TLS up between roles (see \
             docs/how-to/secure-a-cluster-with-tls.md)",
            order.instance
        );
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let (id, function, version_number) = (&planned.id_at_target, &planned.function, planned.version);
    let expected = ExpectedInstance {
        ticket: Some(scheduler.orders.ticket(&planned.to, id, function, version_number)),
        secrets,
        snapshot_key,
        instance: planned.id_at_target.clone(),
        spec: VersionSpec::clone(&version.spec),
        from: planned.from_address.clone(),
    };
    let expected = workers.expect(&order.to, &order.id, &expected).await;
    expected.map_err(refused)?;
    workers.prepare_source(source, &order).await.map_err(refused)?;
    if order.kind == MigrationKind::Move {
        let recalled = scheduler.state().fleet.begin_move(&order.instance, scheduler.now());
        if !recalled {
            workers.cancel_source(source, &order.id).await;
            let message = format!("{} went away, or came to stop, before it could move", order.instance);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        scheduler.recalls.notify_waiters();
        let limit = Instant::now() + settle.min(RECALL_LIMIT);
        while scheduler.state().fleet.is_leased(&order.instance) && Instant::now() < limit {
            tokio::time::sleep(RECALL_PAUSE).await;
        }
    }
    let settle_ms = u64::try_from(settle.as_millis()).unwrap_or(u64::MAX);
    let limit = SettleLimit { settle_ms };
    match workers.perform(source, &order.id, &limit, settle).await {
        Err(error) if order.kind == MigrationKind::Move && error.may_have_been_done() => {
            // Until then the source may not have begun to move it, and report that it runs.
            tokio::time::sleep(settle + REPORTS_COME).await;
            ask_where(scheduler, &order.instance, error).await
        }
        performed => performed.map_err(refused),
    }
}

/// Learns from the workers' reports whether an instance has moved, as its source's answer was lost. If it has, nothing
/// is known of the phases.
async fn ask_where(
    scheduler: &Scheduler,
    instance: &InstanceId,
    error: WorkerError,
) -> Result<MigrationPhases, ApiError> {
    tracing::warn!(%instance, %error, "whether an instance has moved is learnt from its workers' reports");
    scheduler.state().fleet.ask_where(instance);
    let end = Instant::now() + REPORTS_LIMIT;
    while Instant::now() < end {
        let whereabouts = scheduler.state().fleet.whereabouts(instance);
        match whereabouts {
            Whereabouts::Target => return Ok(MigrationPhases::default()),
            Whereabouts::Source => return Err(refused(error)),
            Whereabouts::Gone => break,
            Whereabouts::Unknown => tokio::time::sleep(REPORTS_PAUSE).await,
        }
    }
    Err(ApiError::new(
        ErrorCode::MigrationLost,
        format!("{error}, and neither worker reports {instance} any more: invoke the function again"),
    ))
}

/// Records the outcome, and serves waiting asks.
fn finish(
    scheduler: &Scheduler,
    kind: &MigrationKind,
    planned: &PlannedMove,
    moved: &Result<MigrationPhases, ApiError>,
) {
    let (instance, to) = (&planned.instance, &planned.to);
    {
        let mut state = scheduler.state();
        let now = scheduler.now();
        let max = match state.catalog.known(&planned.function, planned.version) {
            ClaimedVersion::Live(version) | ClaimedVersion::Older(version) => {
                version.spec.config.max_instances as usize
            }
            ClaimedVersion::Unknown => usize::MAX,
        };
        match moved {
            Ok(_) => {
                state.fleet.moved(instance, kind, to, now);
                if *kind == MigrationKind::Move {
                    state.fleet.end_surplus(instance, max, now);
                }
            }
            Err(error) if error.code == ErrorCode::MigrationLost => drop(state.fleet.forget(instance, now)),
            Err(error) => {
                tracing::warn!(%instance, %to, %error, "an instance did not move");
                state.fleet.stays(instance, now);
                scheduler.recalls.notify_waiters();
                if let MigrationKind::Clone(copy) = kind {
                    state.fleet.give_up_copy(copy, max, now);
                }
            }
        }
    }
    pump(scheduler);
}

fn refused(error: WorkerError) -> ApiError {
    match error {
        WorkerError::Refused {
            code: Some(code),
            message,
            ..
        } => ApiError::new(code, message),
        other => ApiError::new(
            ErrorCode::Unavailable,
            format!("{other}: the instance stays where it was"),
        ),
    }
}
