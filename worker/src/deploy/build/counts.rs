//! Counters of what builds do through their proxy.

use rekindle_telemetry::metrics::{Counter, Desc, Family, Registry};

const CONNECTIONS: Desc = Desc::new(
    "rekindle.build.connections",
    "{connection}",
    &["outcome"],
    "Connections that builds asked their proxy for: `passed`, `refused` (the operator does not allow the host) or \
     `failed`.",
);
const BYTES: Desc = Desc::new(
    "rekindle.build.network",
    "By",
    &["direction"],
    "What builds have `received` and `sent` by their proxy.",
);

const EVICTED: Desc = Desc::new(
    "rekindle.dependencies.evicted",
    "By",
    &[],
    "Installed dependencies that had to go for others, or were too old.",
);

/// The counters.
#[derive(Debug, Clone)]
pub struct BuildCounts {
    connections: Family<Counter, 1>,
    bytes: Family<Counter, 1>,
    evicted: Family<Counter, 0>,
}

impl BuildCounts {
    /// Creates the counters in a worker's registry.
    pub fn new(registry: &Registry) -> Self {
        Self {
            connections: registry.family(&CONNECTIONS),
            bytes: registry.family(&BYTES),
            evicted: registry.family(&EVICTED),
        }
    }

    pub(super) fn connection(&self, outcome: &'static str) {
        self.connections.with([outcome]).inc();
    }

    pub(super) fn bytes(&self, direction: &'static str, bytes: u64) {
        self.bytes.with([direction]).add(bytes);
    }

    pub(super) fn evicted(&self, bytes: u64) {
        self.evicted.with([]).add(bytes);
    }
}
