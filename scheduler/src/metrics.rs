//! The scheduler's metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rekindle_snapshotter::{StoreEvent, StoreObserver};
use rekindle_telemetry::metrics::{Counter, Desc, Family, Histogram, Kind, Registry, S3Metrics, observe_process};
use rekindle_wire::WorkerId;
use rekindle_wire::api::{Collected, PhaseTime};
use rekindle_wire::renewal::RenewalReason;

use crate::fleet::Worker;
use crate::fleet::keeping::Decided;
use crate::objects::ObjectStore;
use crate::state::{ClusterState, Shared};
use crate::waiting::PlacementResult;

mod async_calls;

use async_calls::AsyncMetrics;

/// The label with a function's name.
pub(crate) const FUNCTION: &str = "faas.invoked_name";

const PLACEMENTS: Desc = Desc::new(
    "rekindle.scheduler.placements",
    "{placement}",
    &["start", "outcome"],
    "Asks for a slot that were answered: `placed`, or the error's code with start `none`.",
);
const PLACEMENT: Desc = Desc::new(
    "rekindle.scheduler.placement.duration",
    "s",
    &["start"],
    "From an ask's arrival until its answer: a wait in the queue, and the worker's word that it takes a new instance, included.",
);
const QUEUED: Desc = Desc::new(
    "rekindle.scheduler.queue.duration",
    "s",
    &["outcome"],
    "How long asks waited that had to, until they were `placed` or `refused`.",
);
const WAITING: Desc = Desc::new(
    "rekindle.scheduler.waiting",
    "{ask}",
    &[],
    "Asks that wait for a slot: the queue's depth.",
);
const FUNCTIONS: Desc = Desc::new(
    "rekindle.functions",
    "{function}",
    &[],
    "Functions with a version that could serve.",
);
const INSTANCES: Desc = Desc::new(
    "rekindle.instances",
    "{instance}",
    &[FUNCTION, "state"],
    "Instances: `preparing`, `starting`, `ready`, `parked`, `capturing`, `moving`, `stopping`.",
);
const IN_FLIGHT: Desc = Desc::new(
    "rekindle.instances.in_flight",
    "{invocation}",
    &[FUNCTION],
    "Invocations in a function's instances, as workers last reported.",
);
const MEMORY: Desc = Desc::new(
    "rekindle.instances.memory",
    "By",
    &[FUNCTION],
    "Memory charged to the control groups of a function's instances, as workers last reported. Pages that clones share are charged to one of them.",
);
const WORKERS: Desc = Desc::new(
    "rekindle.workers",
    "{worker}",
    &["state"],
    "Workers: `alive`, or `lost`.",
);
const CAPACITY: Desc = Desc::new(
    "rekindle.worker.memory.capacity",
    "By",
    &["worker"],
    "Memory that a worker may give to instances.",
);
const RESERVED: Desc = Desc::new(
    "rekindle.worker.memory.reserved",
    "By",
    &["worker"],
    "Memory limits of its instances together.",
);
const BUSY: Desc = Desc::new(
    "rekindle.worker.busy",
    "1",
    &["worker"],
    "To what share a worker's instances kept its host's processors busy of late, as it last reported.",
);
const REBALANCED: Desc = Desc::new(
    "rekindle.scheduler.rebalanced",
    "{instance}",
    &["outcome"],
    "Instances that were to move off a worker that ran hot: `moved` or `failed`.",
);
const REVOKED: Desc = Desc::new(
    "rekindle.scheduler.revoked",
    "{member}",
    &[],
    "Members of the cluster whose certificates are revoked.",
);
const LEASES: Desc = Desc::new(
    "rekindle.scheduler.leases",
    "{lease}",
    &[],
    "Instances leased to a gateway.",
);
const EXPIRED: Desc = Desc::new(
    "rekindle.scheduler.leases_expired",
    "{lease}",
    &[],
    "Leases that ran out unreturned: their gateway was gone, or could not reach the scheduler.",
);
const RETENTION: Desc = Desc::new(
    "rekindle.scheduler.retention",
    "{decision}",
    &["decision"],
    "What became of instances that nobody used: `parked` or `let_go` after their time, `parked_for_room` or `evicted_for_room` in another's way, `evicted_for_pressure` as their worker was short of memory, `yielded` by a function that held much; `prewarmed` as a call was expected, `prewarm_used` when it came, `prewarm_unused` when it did not.",
);
const STALLED: Desc = Desc::new(
    "rekindle.worker.memory.stalled",
    "1",
    &["worker", "tasks"],
    "Share of the last ten seconds in which tasks on a worker's host waited for memory (PSI): `some` or all of them (`full`).",
);
const AVAILABLE: Desc = Desc::new(
    "rekindle.worker.memory.available",
    "1",
    &["worker"],
    "Share of a worker's memory that can be had without swapping.",
);
const DEPLOYS: Desc = Desc::new(
    "rekindle.deploys",
    "{deploy}",
    &["outcome"],
    "Deploys: `live` or `failed`.",
);
const DEPLOY_PHASE: Desc = Desc::new(
    "rekindle.deploy.phase.duration",
    "s",
    &["phase"],
    "Phases of deploys: `building`, `booting`, `warming`, `snapshotting`, `rehearsing`.",
);
const RENEWALS: Desc = Desc::new(
    "rekindle.snapshot_renewals",
    "{snapshot}",
    &["outcome", "reason"],
    "Snapshots of live versions that were to be made anew: `done` or `failed`; the reasons are below the table.",
);
const RENEWALS_WAITING: Desc = Desc::new(
    "rekindle.snapshot_renewals.waiting",
    "{snapshot}",
    &["reason", "state"],
    "Snapshots that are to be made anew, by why: `waiting`, or `given_up` after eight failures.",
);
const COLLECTIONS: Desc = Desc::new(
    "rekindle.collections",
    "{collection}",
    &["outcome"],
    "Collections of the object store that removed: `done` or `failed`.",
);
const COLLECTED: Desc = Desc::new(
    "rekindle.collected",
    "By",
    &["kind"],
    "What they removed: `snapshots`, `remains`, `chunks`, `layers`, `sources`.",
);

/// The scheduler's instruments.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    placements: Family<Counter, 2>,
    placement: Family<Histogram, 1>,
    queued: Family<Histogram, 1>,
    expired: Family<Counter, 0>,
    retention: Family<Counter, 1>,
    rebalanced: Family<Counter, 1>,
    deploys: Family<Counter, 1>,
    deploy_phase: Family<Histogram, 1>,
    renewals: Family<Counter, 2>,
    collections: Family<Counter, 1>,
    collected: Family<Counter, 1>,
    pub(crate) async_calls: AsyncMetrics,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new("scheduler");
        Self {
            placements: registry.family(&PLACEMENTS),
            placement: registry.family(&PLACEMENT),
            queued: registry.family(&QUEUED),
            expired: registry.family(&EXPIRED),
            retention: registry.family(&RETENTION),
            rebalanced: registry.family(&REBALANCED),
            deploys: registry.family(&DEPLOYS),
            deploy_phase: registry.family(&DEPLOY_PHASE),
            renewals: registry.family(&RENEWALS),
            collections: registry.family(&COLLECTIONS),
            collected: registry.family(&COLLECTED),
            async_calls: AsyncMetrics::new(&registry),
            registry,
        }
    }

    /// The object store, with its requests measured as this scheduler's.
    pub(crate) fn measured(&self, objects: &Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        let s3 = S3Metrics::new(&self.registry);
        let observer: StoreObserver = Arc::new(move |event| match event {
            StoreEvent::Request {
                operation,
                outcome,
                took,
            } => s3.request(operation, outcome, took),
            StoreEvent::Received(bytes) => s3.received(bytes),
            StoreEvent::Sent(bytes) => s3.sent(bytes),
        });
        objects.observed(observer).unwrap_or_else(|| Arc::clone(objects))
    }

    /// Records a placement that took `took`, including time in the queue if `was_queued`.
    pub(crate) fn placed(&self, answer: &PlacementResult, took: Duration, was_queued: bool) {
        let (start, outcome) = match answer {
            Ok(placement) => (placement.start.as_str(), "placed"),
            Err(error) => ("none", error.code.as_str()),
        };
        self.placements.with([start, outcome]).inc();
        self.placement.with([start]).record(took);
        if was_queued {
            let outcome = if answer.is_ok() { "placed" } else { "refused" };
            self.queued.with([outcome]).record(took);
        }
    }

    /// Counts expired leases.
    pub(crate) fn leases_expired(&self, how_many: usize) {
        self.expired.with([]).add(how_many as u64);
    }

    /// Counts decisions about unused instances.
    pub(crate) fn decided(&self, decisions: Vec<Decided>) {
        for decided in decisions {
            self.retention.with([decided.as_str()]).inc();
        }
    }

    /// Counts a move off a hot worker, or a failed one.
    pub(crate) fn rebalanced(&self, has_moved: bool) {
        self.rebalanced.with([if has_moved { "moved" } else { "failed" }]).inc();
    }

    /// Records a finished deploy.
    pub(crate) fn deployed(&self, went_live: bool, phases: &[PhaseTime]) {
        self.deploys.with([if went_live { "live" } else { "failed" }]).inc();
        for PhaseTime { phase, ms } in phases {
            let took = Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
            self.deploy_phase.with([phase.as_str()]).record(took);
        }
    }

    /// Counts a finished attempt to renew a snapshot.
    pub(crate) fn renewed(&self, outcome: &str, reason: &str) {
        self.renewals.with([outcome, reason]).inc();
    }

    /// Counts a finished collection that was not a dry run.
    pub(crate) fn collected(&self, outcome: Option<&Collected>) {
        self.collections
            .with([if outcome.is_some() { "done" } else { "failed" }])
            .inc();
        let Some(all) = outcome else { return };
        for (kind, swept) in [
            ("snapshots", all.snapshots),
            ("remains", all.remains),
            ("chunks", all.chunks),
            ("layers", all.layers),
            ("sources", all.sources),
        ] {
            self.collected.with([kind]).add(swept.bytes);
        }
    }

    /// Drops the metrics of a deleted function.
    pub(crate) fn forget(&self, function: &str) {
        self.registry.forget(FUNCTION, function);
    }
}

/// Registers what is read at each scrape; a dropped scheduler has nothing.
pub(crate) fn observe(registry: &Registry, scheduler: &Weak<Shared>) {
    let one = |desc, read: fn(&mut ClusterState) -> f64| {
        let weak = Weak::clone(scheduler);
        registry.observe_one(Kind::Gauge, desc, move || {
            weak.upgrade().map_or(0.0, |s: Arc<Shared>| read(&mut s.state()))
        });
    };
    one(&WAITING, |m| m.queue.len() as f64);
    one(&FUNCTIONS, |m| m.catalog.len() as f64);
    one(&LEASES, |m| m.fleet.leased() as f64);
    let revoked = Weak::clone(scheduler);
    registry.observe_one(Kind::Gauge, &REVOKED, move || {
        revoked
            .upgrade()
            .map_or(0.0, |s: Arc<Shared>| *s.revoked.borrow() as f64)
    });
    let many = |desc, read: fn(&ClusterState) -> BTreeMap<Vec<String>, f64>| {
        let weak = Weak::clone(scheduler);
        registry.observe(Kind::Gauge, desc, move || {
            let read = |s: Arc<Shared>| read(&s.state()).into_iter().collect();
            weak.upgrade().map(read).unwrap_or_default()
        });
    };
    many(&INSTANCES, |m| {
        sum(m
            .fleet
            .instances
            .values()
            .map(|i| (vec![i.function.to_string(), i.stage.as_str().to_owned()], 1.0)))
    });
    many(&IN_FLIGHT, |m| {
        sum(m
            .fleet
            .instances
            .values()
            .map(|i| (vec![i.function.to_string()], f64::from(i.in_flight))))
    });
    many(&MEMORY, |m| {
        sum(m
            .fleet
            .instances
            .values()
            .map(|i| (vec![i.function.to_string()], i.memory_now as f64)))
    });
    many(&WORKERS, |m| {
        let none = ["alive", "lost"].map(|state| (vec![state.to_owned()], 0.0));
        let state = |alive| if alive { "alive" } else { "lost" };
        let workers = m.fleet.workers.values().map(|w| (vec![state(w.alive).to_owned()], 1.0));
        sum(none.into_iter().chain(workers))
    });
    many(&CAPACITY, |m| {
        sum(m
            .fleet
            .workers
            .iter()
            .map(|(id, w)| (vec![id.to_string()], w.capacity as f64)))
    });
    many(&STALLED, |m| {
        let shares = |w: &Worker| [("some", w.pressure.some), ("full", w.pressure.full)];
        let of = |(id, w): (&WorkerId, &Worker)| {
            let told = shares(w).into_iter().filter_map(|(tasks, share)| Some((tasks, share?)));
            let told = told.map(|(tasks, share)| (vec![id.to_string(), tasks.to_owned()], share / 100.0));
            told.collect::<Vec<_>>()
        };
        sum(m.fleet.workers.iter().flat_map(of))
    });
    many(&AVAILABLE, |m| {
        let of = |(id, w): (&WorkerId, &Worker)| Some((vec![id.to_string()], w.pressure.available? / 100.0));
        sum(m.fleet.workers.iter().filter_map(of))
    });
    many(&RESERVED, |m| {
        sum(m
            .fleet
            .workers
            .keys()
            .map(|id| (vec![id.to_string()], m.fleet.reserved(id) as f64)))
    });
    many(&BUSY, |m| {
        let workers = m.fleet.workers.iter().filter(|(_, w)| w.alive);
        sum(workers.map(|(id, w)| (vec![id.to_string()], w.levels.busy)))
    });
    let weak = Weak::clone(scheduler);
    registry.observe(Kind::Gauge, &RENEWALS_WAITING, move || {
        let waiting = weak.upgrade().map(|s: Arc<Shared>| s.renewals.waiting());
        let state = |given_up| if given_up { "given_up" } else { "waiting" };
        let labelled = |((reason, given_up), count): ((RenewalReason, bool), u64)| {
            (vec![reason.to_string(), state(given_up).to_owned()], count as f64)
        };
        waiting.into_iter().flatten().map(labelled).collect()
    });
    async_calls::observe(registry, scheduler);
    observe_process(registry);
}

fn sum(parts: impl IntoIterator<Item = (Vec<String>, f64)>) -> BTreeMap<Vec<String>, f64> {
    let mut all = BTreeMap::new();
    for (labels, value) in parts {
        *all.entry(labels).or_insert(0.0) += value;
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rekindle_telemetry::metrics::documented;

    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::new();
        S3Metrics::new(&metrics.registry);
        observe(&metrics.registry, &Weak::new());
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        assert_eq!(documented(&metrics.registry, &document), Ok(()));
    }
}
