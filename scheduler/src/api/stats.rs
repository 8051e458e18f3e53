//! Numbers about invocations and workers. Gateways report
//! their counts.

use std::time::{SystemTime, UNIX_EPOCH};

use rekindle_wire::FunctionId;
use rekindle_wire::interface::Call;
use rekindle_wire::interface::scheduler::ReportTraffic;
use rekindle_wire::interface::users::{ReadFunctionStats, ReadStats};
use rekindle_wire::stats::{FunctionStats, Stats, TrafficResponse, WorkerStats};

use super::named;
use crate::cluster::ClusterState;
use crate::metering;
use crate::refusal::{Refused, from_store, unknown_function};
use crate::state::Scheduler;

pub(super) async fn traffic(scheduler: Scheduler, call: Call<ReportTraffic>) -> Result<TrafficResponse, Refused> {
    let now = scheduler.now();
    let mut state = scheduler.state();
    let ClusterState {
        traffic,
        catalog,
        shares,
        ..
    } = &mut *state;
    let mut report = call.body;
    scheduler.keys.note_used(std::mem::take(&mut report.keys_used));
    shares.take(&report.gateway, std::mem::take(&mut report.shares));
    let mut answer = traffic.take(report, now, |name| catalog.has(name));
    let gateways = traffic.gateways(now);
    answer.quotas = Some(metering::for_gateways(&scheduler.metering, &state, gateways));
    Ok(answer)
}

pub(super) async fn all(scheduler: Scheduler, _: Call<ReadStats>) -> Result<Stats, Refused> {
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
    Ok(Stats {
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

pub(super) async fn one(scheduler: Scheduler, call: Call<ReadFunctionStats>) -> Result<FunctionStats, Refused> {
    let name = named(&scheduler, &call.at.name, call.at.namespace)?;
    let live = scheduler.state().catalog.live(&name).map(|live| live.spec.version);
    let version = match live {
        Some(version) => scheduler.store.version(&name, version).await.map_err(from_store)?,
        // Deployed, but not live yet?
        None => scheduler.store.versions(&name, 1).await.map_err(from_store)?.pop(),
    };
    let version = version.ok_or_else(|| unknown_function(&name))?;
    let mut stats = of(&scheduler, &scheduler.state(), &name);
    stats.snapshot = version.snapshot;
    Ok(stats)
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
