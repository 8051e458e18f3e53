//! Figures about invocations and workers. Gateways and workers report them to the scheduler, and the admin API serves
//! them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::KeyId;
use crate::api::{AliasTarget, InstanceInfo, SnapshotSummary, WorkerInfo};
use crate::ids::{FunctionId, GatewayId, VersionNumber};
use crate::internal::GatewayQuotas;

/// A histogram of latencies: the number of invocations that took at most this many microseconds and more than the
/// previous bound. The last bound may be [`u64::MAX`]: beyond the measured range. Only bounds with a count are present.
pub type Latencies = BTreeMap<u64, u64>;

/// An upper bound for a share (0 to 1) of the latencies, interpolated within its bucket, in milliseconds. `None`
/// without any.
pub fn quantile_ms(latencies: &Latencies, share: f64) -> Option<f64> {
    let total: u64 = latencies.values().sum();
    let rank = share.clamp(0.0, 1.0) * total as f64;
    let (mut below, mut low) = (0, 0);
    for (bound, count) in latencies {
        if (below + count) as f64 >= rank && *count > 0 {
            // Nothing more is known above the last bound. Buckets without a count are absent, so the previous bound may
            // be further away than the bucket is wide. The width of a bucket is at most a third of its bound.
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

/// Outcomes of invocations with the same start kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartStats {
    /// Number of invocations that the function answered.
    pub answered: u64,
    /// Number of failed invocations by the platform's error code. `5xx` counts responses with such a status, which are
    /// in `answered` too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// Time from arrival until the response's headers: the number of invocations by upper bound in microseconds.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub latencies: Latencies,
    /// Half of the invocations took at most this long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// Nine in ten took at most this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90_ms: Option<f64>,
    /// Ninety-nine in a hundred took at most this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
}

impl StartStats {
    /// Adds the counts of another gateway.
    pub fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        for (bound, count) in &other.latencies {
            *self.latencies.entry(*bound).or_default() += count;
        }
    }

    /// Number of invocations, answered or not.
    pub fn invocations(&self) -> u64 {
        self.latencies.values().sum()
    }

    /// Number of invocations that failed in any way.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Computes the quantiles.
    pub fn estimate(&mut self) {
        self.p50_ms = quantile_ms(&self.latencies, 0.5);
        self.p90_ms = quantile_ms(&self.latencies, 0.9);
        self.p99_ms = quantile_ms(&self.latencies, 0.99);
    }
}

/// Outcomes by start kind. `none` has the invocations that found no instance.
pub type Traffic = BTreeMap<String, StartStats>;

/// What became of a version's invocations with the same start kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Number of invocations that were answered.
    pub answered: u64,
    /// Number of invocations that failed through the version: by a function's own 5xx, too.
    pub failed: u64,
    /// How long those that were answered took.
    pub latencies: Latencies,
}

impl Outcomes {
    /// Number of invocations.
    pub fn all(&self) -> u64 {
        self.answered + self.failed
    }

    /// Adds the counts of another gateway.
    pub fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        for (bound, count) in &other.latencies {
            *self.latencies.entry(*bound).or_default() += count;
        }
    }
}

/// A gateway's counts of a function's invocations that several versions share, since it applied these weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareReport {
    /// The function.
    pub function: FunctionId,
    /// What its alias `live` names.
    pub targets: Vec<AliasTarget>,
    /// Outcomes by version and start kind. `none` has the invocations that found no instance.
    pub versions: BTreeMap<VersionNumber, BTreeMap<String, Outcomes>>,
}

/// A gateway's counts since its start, for functions whose counts have changed since its last report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// The gateway. It has a new id after each start.
    pub gateway: GatewayId,
    /// All counts of these functions.
    pub functions: BTreeMap<FunctionId, Traffic>,
    /// Counts by version of functions whose invocations are shared, if they have changed since its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<ShareReport>,
    /// When keys were used last, in seconds since the Unix epoch, if that has changed since its last report.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys_used: BTreeMap<KeyId, i64>,
    /// Address at which it takes calls of functions from workers, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions_at: Option<String>,
}

/// The scheduler's response to a traffic report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficResponse {
    /// Whether the scheduler knew the gateway. If not, the gateway must report everything again.
    pub known: bool,
    /// Functions that no longer exist.
    #[serde(default)]
    pub gone: Vec<FunctionId>,
    /// What the gateway keeps of quotas from now on. `None` from a scheduler without quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<GatewayQuotas>,
}

/// Fill levels of a worker's pools and caches, and counters since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WorkerLevels {
    /// Number of empty sandboxes that are ready.
    pub sandboxes_ready: u64,
    /// Number of empty sandboxes to keep ready.
    pub sandboxes_wanted: u64,
    /// Number of open snapshots, each with its template.
    pub templates: u64,
    /// Memory of templates and images in bytes.
    pub template_bytes: u64,
    /// Limit of that memory in bytes.
    pub template_limit_bytes: u64,
    /// Size of the chunks cached on disk, in bytes.
    pub chunk_cache_bytes: u64,
    /// Limit of that size in bytes.
    pub chunk_cache_limit_bytes: u64,
    /// Number of instances restored.
    pub restored: u64,
    /// Number of instances booted.
    pub booted: u64,
    /// Number of failed starts.
    pub failed_starts: u64,
    /// Recent utilisation of its host's processors, 0 to 1.
    pub busy: f64,
    /// Free space on the disk of its cache in bytes. `None` if it cannot be determined.
    pub disk_free_bytes: Option<u64>,
    /// Number of page faults served.
    pub faults: u64,
    /// Half of the page faults took less than this, in microseconds.
    pub fault_p50_us: Option<f64>,
    /// Ninety-nine in a hundred took less than this, in microseconds.
    pub fault_p99_us: Option<f64>,
}

/// Figures about a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStats {
    /// The worker.
    pub worker: WorkerInfo,
    /// Its last reported levels.
    pub levels: WorkerLevels,
}

/// Figures about a function. Counts start with the gateways and the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionStats {
    /// The function.
    pub name: FunctionId,
    /// Outcomes of its invocations by start kind. `none` has those that found no instance.
    pub starts: Traffic,
    /// Its instances.
    pub instances: Vec<InstanceInfo>,
    /// Number of requests for a slot that wait in the scheduler.
    pub waiting: u64,
    /// The live version's snapshot. Only present if a single function was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotSummary>,
}

impl FunctionStats {
    /// Total over all start kinds.
    pub fn total(&self) -> StartStats {
        let mut total = StartStats::default();
        self.starts.values().for_each(|start| total.add(start));
        total.estimate();
        total
    }
}

/// Figures about the platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Time by the scheduler's clock, in milliseconds since the Unix epoch.
    pub at_unix_ms: i64,
    /// Number of recently active gateways.
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
        // The previous bound has no count, so it is absent.
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
