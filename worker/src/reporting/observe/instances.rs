//! Instances: how many, what is in them, and what they hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rekindle_telemetry::metrics::{Desc, Kind, Registry};

use super::part::ObservedComponent;
use crate::instance::{Instance, Instances};

const INSTANCES: Desc = Desc::new(
    "rekindle.worker.instances",
    "{instance}",
    &["state", "started"],
    "Instances on this worker: `starting`, `ready`, `parked`, `capturing`, `moving`, `stopping`; and how they \
     were started.",
);
const IN_FLIGHT: Desc = Desc::new("rekindle.worker.in_flight", "{invocation}", &[], "Invocations in them.");
const MEMORY: Desc = Desc::new(
    "rekindle.worker.instances.memory",
    "By",
    &[],
    "Memory charged to their control groups.",
);
const IDLE_SWAPPED: Desc = Desc::new(
    "rekindle.idle.swapped",
    "By",
    &[],
    "Memory of instances that is evicted now.",
);

pub(super) fn observe(registry: &Registry, instances: &Weak<Instances>) {
    let part = Weak::clone(instances);
    registry.observe(Kind::Gauge, &INSTANCES, move || {
        part.upgrade().map(|instances| by_state(&instances)).unwrap_or_default()
    });
    let part = Weak::clone(instances);
    let instances = ObservedComponent { registry, part };
    instances.one(Kind::Gauge, &IN_FLIGHT, |instances| {
        instances.all().iter().map(|i| f64::from(i.usage.in_flight())).sum()
    });
    instances.one(Kind::Gauge, &MEMORY, |instances| {
        let memory = |i: &Arc<Instance>| i.running()?.cgroup.memory_current().ok();
        instances.all().iter().filter_map(memory).sum::<u64>() as f64
    });
    instances.one(Kind::Gauge, &IDLE_SWAPPED, |instances| {
        let swapped = |i: &Arc<Instance>| i.running()?.cgroup.swap_current().ok();
        instances.all().iter().filter_map(swapped).sum::<u64>() as f64
    });
}

fn by_state(instances: &Instances) -> Vec<(Vec<String>, f64)> {
    let mut all: BTreeMap<Vec<String>, f64> = BTreeMap::new();
    for instance in instances.all() {
        let state = instance.state().as_str();
        let labels = [state, instance.kind.lock().as_str()].map(str::to_owned).to_vec();
        *all.entry(labels).or_default() += 1.0;
    }
    all.into_iter().collect()
}
