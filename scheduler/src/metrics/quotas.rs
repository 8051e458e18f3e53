//! The scheduler's metrics of namespaces' quotas, read at each scrape.

use std::sync::{Arc, Weak};

use rekindle_telemetry::metrics::{Desc, Kind, Registry};
use rekindle_wire::Namespace;
use rekindle_wire::api::{QuotaKind, QuotaUse};
use rekindle_wire::clock::unix_s;

use super::usage::NAMESPACE;
use crate::clock::day_of;
use crate::state::SchedulerState;

const LIMIT: Desc = Desc::new(
    "rekindle.quota.limit",
    "1",
    &[NAMESPACE, "quota"],
    "Limits of namespaces: `memory`, `instances`, `rate`, `builds`, `stored`, `backlog`, `egress`.",
);
const USED: Desc = Desc::new(
    "rekindle.quota.used",
    "1",
    &[NAMESPACE, "quota"],
    "How much of these limits is in use; there is none of `rate`, and `stored` is added up every five minutes.",
);

/// Registers what is read at each scrape.
pub(super) fn observe(registry: &Registry, scheduler: &Weak<SchedulerState>) {
    type Read = fn(u64, Option<u64>) -> Option<u64>;
    let reads: [(&'static Desc, Read); 2] = [(&LIMIT, |limit, _| Some(limit)), (&USED, |_, used| used)];
    for (desc, read) in reads {
        let weak = Weak::clone(scheduler);
        registry.observe(Kind::Gauge, desc, move || {
            let Some(scheduler): Option<Arc<SchedulerState>> = weak.upgrade() else {
                return Vec::new();
            };
            let names: Vec<_> = scheduler.state().catalog.namespaces().iter().cloned().collect();
            let of = |name: &Namespace| {
                let shown = shown(&scheduler, name.as_str()).into_iter();
                let labels = |kind: &str| vec![name.to_string(), kind.to_owned()];
                let one =
                    |(kind, limit, used): (QuotaKind, _, _)| Some((labels(kind.as_str()), read(limit, used)? as f64));
                shown.filter_map(one).collect::<Vec<_>>()
            };
            names.iter().flat_map(of).collect()
        });
    }
}

/// A namespace's limits, and how much of each is in use as far as is known in memory.
fn shown(scheduler: &SchedulerState, namespace: &str) -> Vec<(QuotaKind, u64, Option<u64>)> {
    let async_backlog = scheduler.calls.queues().backlog(namespace);
    let state = scheduler.state();
    let (limits, _) = state.fleet.quotas.of(namespace);
    let held = state.fleet.holding(namespace);
    let used = QuotaUse {
        memory_bytes: held.memory,
        instances: held.instances,
        builds: scheduler.builds.of(namespace),
        stored_bytes: scheduler.metering.stored(namespace),
        async_backlog,
        egress_bytes_today: scheduler.metering.egress(namespace, day_of(unix_s())),
    };
    limits
        .limits()
        .map(|(kind, limit)| (kind, limit, used.of(kind)))
        .collect()
}
