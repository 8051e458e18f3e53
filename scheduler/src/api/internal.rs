//! Gateways ask for slots and report their leases, workers report what runs.

use std::time::Duration;

use rekindle_wire::clock::unix_s;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::scheduler::{AskHost, AwaitRecalls, AwaitRoutes, Beat, Place, ReportLeases};
use rekindle_wire::internal::{DamagedSnapshot, HeartbeatResponse, LeaseResponse, Placement, Presence, RoutesResponse};
use rekindle_wire::{ApiError, ErrorCode};
use tracing::Span;

use super::members;
use crate::evacuation::evacuate;
use crate::placing::{self, pump};
use crate::refusal::Refused;
use crate::renewal::refused::note_refused;
use crate::secrets;
use crate::state::Scheduler;

/// Longest time that a watch is kept open.
const WATCH_LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn placements(scheduler: Scheduler, call: Call<Place>) -> Result<Placement, Refused> {
    let request = call.body;
    let span = Span::current();
    span.record("faas.invoked_name", request.function.as_str());
    let placed = placing::placement(&scheduler, request).await;
    match &placed {
        Ok(placement) => {
            span.record("rekindle.instance", placement.instance.as_str());
            span.record("rekindle.start", placement.start.as_str());
        }
        Err(error) => {
            span.record("error.type", error.code.as_str());
            span.record("otel.status_code", "ERROR");
        }
    }
    placed
}

pub(super) async fn leases(scheduler: Scheduler, call: Call<ReportLeases>) -> Result<LeaseResponse, Refused> {
    let report = call.body;
    let (give_back, stuck) = scheduler.state().fleet.report(&report, scheduler.now());
    for instance in stuck {
        placing::kill(&scheduler, instance);
    }
    if !report.returned.is_empty() {
        pump(&scheduler);
    }
    Ok(LeaseResponse { give_back })
}

/// Answers as soon as a lease of the gateway is recalled, or with nothing when the wait is over.
pub(super) async fn recalls(scheduler: Scheduler, call: Call<AwaitRecalls>) -> Result<LeaseResponse, Refused> {
    let AwaitRecalls { gateway, wait_ms } = call.at;
    let wait = Duration::from_millis(wait_ms.unwrap_or(0)).min(WATCH_LIMIT);
    let until = tokio::time::Instant::now() + wait;
    loop {
        // Subscribe before the check: a recall in between is not missed.
        let changed = scheduler.recalls.notified();
        let give_back = scheduler.state().fleet.untold_recalls(&gateway);
        if !give_back.is_empty() || tokio::time::timeout_at(until, changed).await.is_err() {
            return Ok(LeaseResponse { give_back });
        }
    }
}

/// Answers as soon as the gateway lacks a change of an alias, or with nothing when the wait is over.
pub(super) async fn routes(scheduler: Scheduler, call: Call<AwaitRoutes>) -> Result<RoutesResponse, Refused> {
    let at = call.at;
    let routes = &scheduler.routes;
    let known = at.revision.filter(|_| at.epoch.as_ref() == Some(&routes.epoch));
    routes.note_applied(&at.gateway, known.unwrap_or(0));
    let wait = Duration::from_millis(at.wait_ms.unwrap_or(0)).min(WATCH_LIMIT);
    let mut newest = routes.revision.subscribe();
    // Subscribed before the check: a change in between is not missed.
    if known == Some(scheduler.state().catalog.revision()) {
        let _waited_long_enough = tokio::time::timeout(wait, newest.changed()).await;
    }
    let state = scheduler.state();
    if let Some(function) = at.wanted.filter(|wanted| !state.catalog.knows(wanted)) {
        return Err(state.catalog.missing(&function));
    }
    Ok(RoutesResponse {
        epoch: routes.epoch.clone(),
        revision: state.catalog.revision(),
        functions: state.catalog.routes_since(known.unwrap_or(0)),
    })
}

pub(super) async fn heartbeat(scheduler: Scheduler, call: Call<Beat>) -> Result<HeartbeatResponse, Refused> {
    let mut beat = call.body;
    members::check_worker(&members::caller(&call.head.extensions), beat.worker.as_str())?;
    scheduler.orders.check(&mut beat, unix_s());
    for damaged in &beat.damaged {
        lose(&scheduler, damaged).await;
    }
    for refused in &beat.snapshots.refused {
        note_refused(&scheduler, refused).await;
    }
    let (answer, is_news, is_to_tell) = {
        let mut state = scheduler.state();
        let known = state.fleet.workers.get(&beat.worker);
        let is_news = known.is_none_or(|w| w.incarnation != beat.incarnation || w.address != beat.address);
        let is_news = is_news && !state.fleet.is_late(&beat);
        let now = scheduler.now();
        let state = &mut *state;
        let catalog = &state.catalog;
        let stop = state.fleet.heartbeat(&beat, now, |f, v| catalog.known(f, v));
        if beat.presence != Presence::Serving {
            // Before waiting asks can evict what is in use there to start another elsewhere.
            evacuate(&scheduler, state, now);
        }
        let kept_revision = state.fleet.kept_revision(&beat.worker);
        let answer = HeartbeatResponse {
            stop,
            forget: state.fleet.retired_templates(&beat.worker, state.catalog.retired()),
            kept_revision,
            gateways: state.traffic.functions_at(now),
        };
        (answer, is_news, state.fleet.is_to_tell())
    };
    // The worker may have begun to leave.
    if beat.presence != Presence::Serving || is_to_tell {
        scheduler.recalls.notify_waiters();
    }
    if is_news {
        tracing::info!(worker = %beat.worker, address = beat.address, "a worker is heard of");
    }
    secrets::follow(&scheduler, &beat);
    pump(&scheduler);
    Ok(answer)
}

/// Whether a worker has any instance of a namespace, in any stage.
pub(super) async fn hosts(scheduler: Scheduler, call: Call<AskHost>) -> Result<bool, Refused> {
    let AskHost { worker, namespace } = call.at;
    let hosts = scheduler.state().fleet.hosts(&worker, namespace.as_str());
    hosts.ok_or_else(|| {
        ApiError::new(
            ErrorCode::Unavailable,
            format!("the worker {worker} has not been heard of lately, so what it runs is not known: try again"),
        )
    })
}

/// Boots the version from now on, since its snapshot is damaged.
async fn lose(scheduler: &Scheduler, damaged: &DamagedSnapshot) {
    let Some(spec) = scheduler.state().catalog.drop_snapshot(damaged) else {
        return;
    };
    let DamagedSnapshot { snapshot, why, .. } = damaged;
    let (function, version) = (&spec.function, spec.version);
    tracing::warn!(%function, %version, %snapshot, why, "a version has lost its snapshot");
    let told = format!("snapshot {snapshot} is damaged: {why}; each start boots: deploy again for a new one");
    if let Err(error) = scheduler.store.lose_snapshot(&spec, snapshot, &told).await {
        // After its next restart the scheduler trusts the snapshot again, and a worker finds it damaged again.
        tracing::warn!(%function, error = &error as &dyn std::error::Error, "a damaged snapshot could not be noted");
    }
}
