//! The scheduler's metrics.

use std::sync::Arc;
use std::time::Duration;

use rekindle_snapshotter::{StoreEvent, StoreObserver};
use rekindle_telemetry::metrics::{Counter, Desc, Family, Histogram, Registry, S3Metrics};
use rekindle_wire::api::{Collected, PhaseTime};

use crate::fleet::retire::InstanceDecision;
use crate::objects::ObjectStore;
use crate::waiting::PlacementResult;

mod async_calls;
pub(crate) mod observe;
mod quotas;
mod schedules;
mod usage;

use async_calls::AsyncMetrics;
use schedules::ScheduleMetrics;
use usage::UsageMetrics;

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
    "From an ask's arrival until its answer: a wait in the queue, and the worker's word that it takes a new instance, \
     included.",
);
const QUEUED: Desc = Desc::new(
    "rekindle.scheduler.queue.duration",
    "s",
    &["outcome"],
    "How long asks waited that had to, until they were `placed` or `refused`.",
);
const REBALANCED: Desc = Desc::new(
    "rekindle.scheduler.rebalanced",
    "{instance}",
    &["outcome"],
    "Instances that were to move off a worker that ran hot: `moved` or `failed`.",
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
    "What became of instances that nobody used: `parked` or `let_go` after their time, `parked_for_room` or \
     `evicted_for_room` in another's way, `evicted_for_pressure` as their worker was short of memory, `yielded` by a \
     function that held much; `prewarmed` as a call was expected, `prewarm_used` when it came, `prewarm_unused` when \
     it did not.",
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
const CANARIES: Desc = Desc::new(
    "rekindle.canaries",
    "{canary}",
    &["outcome"],
    "Canaries that are over: `live`, `rolled_back` as they were worse, or `replaced` by another change of what serves.",
);
const RENEWALS: Desc = Desc::new(
    "rekindle.snapshot_renewals",
    "{snapshot}",
    &["outcome", "reason"],
    "Snapshots of live versions that were to be made anew: `done` or `failed`; the reasons are below the table.",
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
    canaries: Family<Counter, 1>,
    renewals: Family<Counter, 2>,
    collections: Family<Counter, 1>,
    collected: Family<Counter, 1>,
    pub(crate) async_calls: AsyncMetrics,
    pub(crate) schedules: ScheduleMetrics,
    pub(crate) usage: UsageMetrics,
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
            canaries: registry.family(&CANARIES),
            renewals: registry.family(&RENEWALS),
            collections: registry.family(&COLLECTIONS),
            collected: registry.family(&COLLECTED),
            async_calls: AsyncMetrics::new(&registry),
            schedules: ScheduleMetrics::new(&registry),
            usage: UsageMetrics::new(&registry),
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
            } => s3.request(operation, outcome.as_str(), took),
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

    pub(crate) fn leases_expired(&self, how_many: usize) {
        self.expired.with([]).add(how_many as u64);
    }

    /// Counts decisions about unused instances.
    pub(crate) fn decided(&self, decisions: Vec<InstanceDecision>) {
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

    /// Counts a canary that is over.
    pub(crate) fn canary_ended(&self, outcome: &str) {
        self.canaries.with([outcome]).inc();
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

    /// Drops the metrics of a removed namespace.
    pub(crate) fn forget_namespace(&self, namespace: &str) {
        self.registry.forget(usage::NAMESPACE, namespace);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Weak;

    use rekindle_telemetry::metrics::documented;

    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::new();
        S3Metrics::new(&metrics.registry);
        observe::observe(&metrics.registry, &Weak::new());
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        assert_eq!(documented(&metrics.registry, &document), Ok(()));
    }
}
