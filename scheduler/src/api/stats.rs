//! `/v1/stats` and `/v1/functions/{name}/stats`: numbers about invocations and workers. `/internal/traffic` takes the
//! gateways' counts.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use rekindle_wire::FunctionId;
use rekindle_wire::stats::{FunctionStats, Stats, TrafficAnswer, TrafficReport, WorkerStats};

use super::{Named, Refused, bad_json, from_store, functions};
use crate::state::{ClusterState, Scheduler};

pub(super) async fn traffic(
    State(scheduler): State<Scheduler>,
    report: Result<Json<TrafficReport>, JsonRejection>,
) -> Result<Json<TrafficAnswer>, Refused> {
    let Json(report) = report.map_err(bad_json)?;
    let now = scheduler.now();
    let answer = {
        let ClusterState { traffic, catalog, .. } = &mut *scheduler.state();
        traffic.take(report, now, |name| catalog.has(name))
    };
    Ok(Json(answer))
}

pub(super) async fn all(State(scheduler): State<Scheduler>) -> Json<Stats> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let state = scheduler.state();
    let levels = |worker: rekindle_wire::api::WorkerInfo| WorkerStats {
        levels: state
            .fleet
            .workers
            .get(&worker.id)
            .map(|w| w.levels)
            .unwrap_or_default(),
        worker,
    };
    Json(Stats {
        at_unix_ms: i64::try_from(at.as_millis()).unwrap_or(i64::MAX),
        gateways: state.traffic.gateways(scheduler.now()) as u64,
        workers: state
            .fleet
            .worker_infos(scheduler.now())
            .into_iter()
            .map(levels)
            .collect(),
        functions: state.catalog.names().map(|name| of(&scheduler, &state, name)).collect(),
    })
}

pub(super) async fn one(
    State(scheduler): State<Scheduler>,
    Named(name): Named,
) -> Result<Json<FunctionStats>, Refused> {
    let live = scheduler.state().catalog.live(&name).map(|live| live.spec.version);
    let version = match live {
        Some(version) => scheduler.store.version(&name, version).await.map_err(from_store)?,
        // Deployed, but not live yet?
        None => scheduler.store.versions(&name, 1).await.map_err(from_store)?.pop(),
    };
    let version = version.ok_or_else(|| functions::unknown(&name))?;
    let mut stats = of(&scheduler, &scheduler.state(), &name);
    stats.snapshot = version.snapshot;
    Ok(Json(stats))
}

fn of(scheduler: &Scheduler, state: &ClusterState, name: &FunctionId) -> FunctionStats {
    FunctionStats {
        name: name.clone(),
        starts: state.traffic.of(name),
        instances: state.fleet.instance_infos(Some(name), scheduler.now()),
        waiting: state.queue.waiting_for(name) as u64,
        snapshot: None,
    }
}
