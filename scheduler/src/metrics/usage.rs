//! The scheduler's metrics of what namespaces use.

use rekindle_telemetry::metrics::{Counter, Desc, Family, Registry};
use rekindle_wire::internal::UsageReport;

/// The label with a namespace.
pub(super) const NAMESPACE: &str = "namespace";

const INVOCATIONS: Desc = Desc::new(
    "rekindle.usage.invocations",
    "{invocation}",
    &[NAMESPACE, "outcome"],
    "Invocations that instances took, as they are counted for `fn usage`: `ok`, or `error`.",
);
const MEMORY: Desc = Desc::new(
    "rekindle.usage.mebibyte_milliseconds",
    "{mebibyte_millisecond}",
    &[NAMESPACE, "start"],
    "Their instances' memory limits times their durations.",
);
const EGRESS: Desc = Desc::new("rekindle.usage.egress", "By", &[NAMESPACE], "Bodies of their answers.");
pub(crate) struct UsageMetrics {
    invocations: Family<Counter, 2>,
    memory: Family<Counter, 2>,
    egress: Family<Counter, 1>,
}

impl UsageMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            invocations: registry.family(&INVOCATIONS),
            memory: registry.family(&MEMORY),
            egress: registry.family(&EGRESS),
        }
    }

    /// Adds a report that was counted.
    pub(crate) fn counted(&self, report: &UsageReport) {
        for entry in &report.entries {
            let (namespace, counts) = (entry.function.namespace(), &entry.counts);
            self.invocations.with([namespace, "ok"]).add(counts.ok);
            self.invocations.with([namespace, "error"]).add(counts.errors);
            self.egress.with([namespace]).add(counts.egress_bytes);
            for (start, time) in [
                ("warm", counts.warm),
                ("parked", counts.parked),
                ("restored", counts.restored),
                ("booted", counts.booted),
            ] {
                self.memory.with([namespace, start]).add(time / 1_000);
            }
        }
    }
}
