//! Metrics that are read at each scrape.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rekindle_telemetry::metrics::{Desc, Kind, Registry, observe_process};
use rekindle_wire::WorkerId;
use rekindle_wire::clock::unix_ms;
use rekindle_wire::renewal::RenewalReason;

use super::FUNCTION;
use crate::cluster::ClusterState;
use crate::fleet::Worker;
use crate::state::SchedulerState;
use crate::store::QueueCounts;

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
const CANARIES: Desc = Desc::new(
    "rekindle.canaries.growing",
    "{canary}",
    &[],
    "Canaries that are not over.",
);
const LEASES: Desc = Desc::new(
    "rekindle.scheduler.leases",
    "{lease}",
    &[],
    "Instances leased to a gateway.",
);
const REVOKED: Desc = Desc::new(
    "rekindle.scheduler.revoked",
    "{member}",
    &[],
    "Members of the cluster whose certificates are revoked.",
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
    "Memory charged to the control groups of a function's instances, as workers last reported. Pages that clones \
     share are charged to one of them.",
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
const STALLED: Desc = Desc::new(
    "rekindle.worker.memory.stalled",
    "1",
    &["worker", "tasks"],
    "Share of the last ten seconds in which tasks on a worker's host waited for memory (PSI): `some` or \
     all of them (`full`).",
);
const AVAILABLE: Desc = Desc::new(
    "rekindle.worker.memory.available",
    "1",
    &["worker"],
    "Share of a worker's memory that can be had without swapping.",
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
const RENEWALS_WAITING: Desc = Desc::new(
    "rekindle.snapshot_renewals.waiting",
    "{snapshot}",
    &["reason", "state"],
    "Snapshots that are to be made anew, by why: `waiting`, or `given_up` after eight failures.",
);
const SCHEDULES: Desc = Desc::new(
    "rekindle.schedules",
    "{schedule}",
    &["state"],
    "Schedules of versions that serve: `active` or `paused`.",
);
const DEPTH: Desc = Desc::new(
    "rekindle.async.depth",
    "{invocation}",
    &[FUNCTION, "state"],
    "Asynchronous invocations that are `queued` or `running`.",
);
const OLDEST: Desc = Desc::new(
    "rekindle.async.oldest_age",
    "s",
    &[FUNCTION],
    "The age of the oldest of them.",
);

/// Registers what is read at each scrape; a dropped scheduler has nothing.
pub(crate) fn observe(registry: &Registry, scheduler: &Weak<SchedulerState>) {
    let one = |desc, read: fn(&mut ClusterState) -> f64| {
        let weak = Weak::clone(scheduler);
        registry.observe_one(Kind::Gauge, desc, move || {
            weak.upgrade()
                .map_or(0.0, |s: Arc<SchedulerState>| read(&mut s.state()))
        });
    };
    one(&WAITING, |m| m.queue.len() as f64);
    one(&FUNCTIONS, |m| m.catalog.len() as f64);
    one(&CANARIES, |m| m.canaries.len() as f64);
    one(&LEASES, |m| m.fleet.leased() as f64);
    let revoked = Weak::clone(scheduler);
    registry.observe_one(Kind::Gauge, &REVOKED, move || {
        revoked
            .upgrade()
            .map_or(0.0, |s: Arc<SchedulerState>| *s.revoked.borrow() as f64)
    });
    let many = |desc, read: fn(&ClusterState) -> BTreeMap<Vec<String>, f64>| {
        let weak = Weak::clone(scheduler);
        registry.observe(Kind::Gauge, desc, move || {
            let read = |s: Arc<SchedulerState>| read(&s.state()).into_iter().collect();
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
        let waiting = weak.upgrade().map(|s: Arc<SchedulerState>| s.renewals.waiting());
        let state = |given_up| if given_up { "given_up" } else { "waiting" };
        let labelled = |((reason, given_up), count): ((RenewalReason, bool), u64)| {
            (vec![reason.to_string(), state(given_up).to_owned()], count as f64)
        };
        waiting.into_iter().flatten().map(labelled).collect()
    });
    let weak = Weak::clone(scheduler);
    registry.observe(Kind::Gauge, &SCHEDULES, move || {
        let counted = weak.upgrade().map(|s: Arc<SchedulerState>| s.schedules.count());
        let labelled = |(state, count): (&str, u64)| (vec![state.to_owned()], count as f64);
        counted.into_iter().flatten().map(labelled).collect()
    });
    observe_calls(registry, scheduler);
    super::quotas::observe(registry, scheduler);
    observe_process(registry);
}

fn sum(parts: impl IntoIterator<Item = (Vec<String>, f64)>) -> BTreeMap<Vec<String>, f64> {
    let mut all = BTreeMap::new();
    for (labels, value) in parts {
        *all.entry(labels).or_insert(0.0) += value;
    }
    all
}

/// A series' labels and its value.
type Sample = (Vec<String>, f64);

fn observe_calls(registry: &Registry, scheduler: &Weak<SchedulerState>) {
    let each = |desc, read: fn(&str, &QueueCounts) -> Vec<Sample>| {
        let weak = Weak::clone(scheduler);
        registry.observe(Kind::Gauge, desc, move || {
            let read = |s: Arc<SchedulerState>| -> Vec<_> {
                let queues = s.calls.queues();
                queues.each().flat_map(|(name, due)| read(name.as_str(), due)).collect()
            };
            weak.upgrade().map(read).unwrap_or_default()
        });
    };
    each(&DEPTH, |name, due| {
        let one = |state: &str, n: u64| (vec![name.to_owned(), state.to_owned()], n as f64);
        vec![one("queued", due.queued), one("running", due.running)]
    });
    each(&OLDEST, |name, due| {
        let age = match due.queued + due.running {
            0 => 0.0,
            _ => unix_ms().saturating_sub(due.oldest_unix_ms).max(0) as f64 / 1e3,
        };
        vec![(vec![name.to_owned()], age)]
    });
}
