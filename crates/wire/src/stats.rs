//! What invocations and workers come to, in numbers: gateways and workers tell the scheduler, and the admin API tells whoever asks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{InstanceInfo, SnapshotSummary, WorkerInfo};
use crate::ids::{FunctionName, GatewayId};

/// How many invocations took how long: at most so many microseconds, and more than the bound before. The last bound may be
/// [`u64::MAX`]: longer than what is told apart. Only bounds with a count are there.
pub type Latencies = BTreeMap<u64, u64>;

/// A bound below which a share of them (0 to 1) lies, interpolated within its bucket, in milliseconds. `None` without any.
pub fn quantile_ms(latencies: &Latencies, share: f64) -> Option<f64> {
    let total: u64 = latencies.values().sum();
    let rank = share.clamp(0.0, 1.0) * total as f64;
    let (mut below, mut low) = (0, 0);
    for (bound, count) in latencies {
        if (below + count) as f64 >= rank && *count > 0 {
            // Above the last bound nothing is known but that. Buckets without a count are not here, so the one before may be further away
            // than the bucket is wide: a bucket is at most a third of its bound wide.
            let high = if *bound == u64::MAX { low } else { *bound };
            let low = low.max(high - high / 3);
            let within = ((rank - below as f64) / *count as f64).clamp(0.0, 1.0);
            return Some((low as f64 + (high - low) as f64 * within) / 1e3);
        }
        below += count;
        low = *bound;
    }
    None
}

/// What invocations came to that started in one way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartStats {
    /// Invocations that the function answered.
    pub answered: u64,
    /// Those that failed, by the platform's error code; `5xx` counts answers of such a status, which are in `answered` too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// From arrival until the answer's headers: the count of invocations by upper bound in microseconds.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub latencies: Latencies,
    /// Half of them took at most so long, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// Nine in ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90_ms: Option<f64>,
    /// Ninety-nine in a hundred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
}

impl StartStats {
    /// Adds what another gateway counted.
    pub fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        for (bound, count) in &other.latencies {
            *self.latencies.entry(*bound).or_default() += count;
        }
    }

    /// Invocations, answered or not.
    pub fn invocations(&self) -> u64 {
        self.latencies.values().sum()
    }

    /// Those that failed in any way.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Fills the quantiles in.
    pub fn estimate(&mut self) {
        self.p50_ms = quantile_ms(&self.latencies, 0.5);
        self.p90_ms = quantile_ms(&self.latencies, 0.9);
        self.p99_ms = quantile_ms(&self.latencies, 0.99);
    }
}

/// By start kind; `none` has the invocations that found no instance.
pub type Traffic = BTreeMap<String, StartStats>;

/// What a gateway has counted since its start, of functions whose counts have changed since it last told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// The gateway; it has another id after each start.
    pub gateway: GatewayId,
    /// All counts of these functions.
    pub functions: BTreeMap<FunctionName, Traffic>,
}

/// The answer to it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficAnswer {
    /// The scheduler had heard of the gateway before; else it is to tell everything again.
    pub known: bool,
    /// Functions that do not exist any more.
    #[serde(default)]
    pub gone: Vec<FunctionName>,
}

/// How full a worker's pools and caches are, and what it has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WorkerLevels {
    /// Empty sandboxes that are ready.
    pub sandboxes_ready: u64,
    /// How many are kept ready.
    pub sandboxes_wanted: u64,
    /// Snapshots open, each with its template.
    pub templates: u64,
    /// Memory that templates and images take, bytes.
    pub template_bytes: u64,
    /// How much they may take, bytes.
    pub template_limit_bytes: u64,
    /// Chunks cached on disk, bytes.
    pub chunk_cache_bytes: u64,
    /// How much that may be, bytes.
    pub chunk_cache_limit_bytes: u64,
    /// Instances restored.
    pub restored: u64,
    /// Instances booted.
    pub booted: u64,
    /// Starts that failed.
    pub failed_starts: u64,
    /// To what share its host's processors were busy lately, 0 to 1.
    pub busy: f64,
    /// Free on the disk of its cache, bytes; none where that cannot be told.
    pub disk_free_bytes: Option<u64>,
    /// Page faults served.
    pub faults: u64,
    /// Half of them took less than this, microseconds.
    pub fault_p50_us: Option<f64>,
    /// Ninety-nine in a hundred.
    pub fault_p99_us: Option<f64>,
}

/// A worker in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStats {
    /// The worker.
    pub worker: WorkerInfo,
    /// As it last reported.
    pub levels: WorkerLevels,
}

/// A function in numbers. Counts are since the gateways' and the scheduler's start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionStats {
    /// The function.
    pub name: FunctionName,
    /// What its invocations came to, by start kind; `none` has those that found no instance.
    pub starts: Traffic,
    /// Its instances.
    pub instances: Vec<InstanceInfo>,
    /// Asks for a slot that wait in the scheduler.
    pub waiting: u64,
    /// The live version's snapshot; only where one function was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotSummary>,
}

impl FunctionStats {
    /// All start kinds together.
    pub fn total(&self) -> StartStats {
        let mut total = StartStats::default();
        self.starts.values().for_each(|start| total.add(start));
        total.estimate();
        total
    }
}

/// The platform in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// When, by the scheduler's clock, in milliseconds since the Unix epoch.
    pub at_unix_ms: i64,
    /// Gateways heard of lately.
    pub gateways: u64,
    /// Workers.
    pub workers: Vec<WorkerStats>,
    /// Functions, by name.
    pub functions: Vec<FunctionStats>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_their_buckets() {
        let latencies: Latencies = [(1_000, 50), (1_250, 49), (u64::MAX, 1)].into();
        let at = |share| quantile_ms(&latencies, share).unwrap();
        assert!((at(0.5) - 1.0).abs() < 1e-9, "{}", at(0.5));
        assert!(at(0.9) > 1.0 && at(0.9) < 1.25);
        assert!((at(1.0) - 1.25).abs() < 1e-9, "longer than what is told apart");
        assert_eq!(quantile_ms(&Latencies::new(), 0.5), None);
        // The bound before has no count, so it is not here.
        let lone: Latencies = [(90_000, 10)].into();
        assert!(quantile_ms(&lone, 0.01).unwrap() >= 60.0);
    }

    #[test]
    fn counts_of_gateways_add_up() {
        let one = StartStats {
            answered: 2,
            errors: [("throttled".to_owned(), 1)].into(),
            latencies: [(1_000, 3)].into(),
            ..StartStats::default()
        };
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.answered, sum.failed(), sum.invocations()), (4, 2, 6));
    }
}
