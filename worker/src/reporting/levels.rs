//! How full the worker's pools and caches are, for a heartbeat.

use std::path::PathBuf;
use std::sync::Arc;

use rekindle_telemetry::metrics::{HistogramValue, buckets};
use rekindle_wire::api::StartKind;
use rekindle_wire::stats::WorkerLevels;

use crate::host::cgroup::Cgroups;
use crate::host::disk::free_bytes;
use crate::host::load::Load;
use crate::host::sandbox::pool::SandboxPool;
use crate::instance::Instances;
use crate::metrics::Metrics;
use crate::snapshots::Snapshots;

/// What has levels.
pub struct Levels {
    /// Sandboxes created ahead.
    pub pool: Arc<SandboxPool>,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// All instances.
    pub instances: Arc<Instances>,
    /// How busy they keep the processors.
    pub load: Load,
    /// Control groups of this host.
    pub cgroups: Cgroups,
    /// Number of processors of this host.
    pub cpus: u32,
    /// A directory on the disk that may become full.
    pub cache_dir: PathBuf,
    /// The worker's metrics.
    pub metrics: Arc<Metrics>,
}

impl Levels {
    pub(super) fn read(&self) -> WorkerLevels {
        let (pool, templates) = (self.pool.counts(), self.snapshots.usage());
        let cache = self.snapshots.reader().cache_usage();
        let faults = self.metrics.pagers.totals();
        let fault_us = |share| {
            let HistogramValue { bounds, counts, .. } = &faults.latency;
            buckets::quantile(bounds, counts, share).map(|s| s * 1e6)
        };
        let started = |start| self.metrics.starts(start, "ready");
        let failed = |start| self.metrics.starts(start, "failed");
        WorkerLevels {
            sandboxes_ready: pool.ready as u64,
            sandboxes_wanted: pool.wanted as u64,
            templates: templates.open,
            template_bytes: templates.bytes,
            template_limit_bytes: templates.limit_bytes,
            chunk_cache_bytes: cache.bytes,
            chunk_cache_limit_bytes: cache.max_bytes,
            restored: started(StartKind::Restored),
            booted: started(StartKind::Booted),
            failed_starts: failed(StartKind::Restored) + failed(StartKind::Booted),
            busy: self.load.share(&self.cgroups, self.cpus, || processes(&self.instances)),
            disk_free_bytes: free_bytes(&self.cache_dir),
            faults: faults.faults,
            fault_p50_us: fault_us(0.5),
            fault_p99_us: fault_us(0.99),
        }
    }
}

/// Lists the processes of all instances.
fn processes(instances: &Instances) -> Vec<i32> {
    let instances = instances.all();
    let pids = instances.iter().filter_map(|i| i.running()?.cgroup.pids().ok());
    pids.flatten().collect()
}
