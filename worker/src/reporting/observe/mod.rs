//! Levels of a worker, and counters of other crates, read on request.

mod idle;
mod instances;
mod pagers;
mod part;
mod sandboxes;
mod snapshots;

use std::path::PathBuf;
use std::sync::Weak;

use rekindle_telemetry::metrics::{Desc, Kind, Registry, observe_process};

use crate::deploy::build;
use crate::host::disk::free_bytes;
use crate::host::sandbox::pool::SandboxPool;
use crate::host::start_limiter::StartLimiter;
use crate::idle::IdleMemory;
use crate::instance::{Instances, Resetter};
use crate::layers::Layers;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::snapshots::Snapshots;
use part::ObservedComponent;

const DISK_FREE: Desc = Desc::new(
    "rekindle.worker.disk.free",
    "By",
    &[],
    "Free on the disk of its cache. With less than 512 MiB new instances and deploys go to other workers.",
);
const LAYERS: Desc = Desc::new("rekindle.layers", "By", &[], "Unpacked layers on disk.");
const LAYERS_LIMIT: Desc = Desc::new("rekindle.layers.limit", "By", &[], "How much they may take.");
const LAYERS_EVICTED: Desc = Desc::new(
    "rekindle.layers.evicted",
    "By",
    &[],
    "Layers that had to go for others.",
);
const LAYERS_FETCHED: Desc = Desc::new(
    "rekindle.layers.fetched",
    "By",
    &["when"],
    "Fetched of images that are restored before they are on the host.",
);
const LAYERS_FAILED: Desc = Desc::new(
    "rekindle.layers.failed_reads",
    "{read}",
    &[],
    "Reads of such images that failed, since the store did not answer in time or its bytes were wrong.",
);
const DEPENDENCIES: Desc = Desc::new(
    "rekindle.dependencies",
    "By",
    &[],
    "Installed dependencies that are kept for the next build.",
);
const DEPENDENCIES_LIMIT: Desc = Desc::new("rekindle.dependencies.limit", "By", &[], "How much they may take.");
const FRESH_POINTS: Desc = Desc::new(
    "rekindle.fresh.points",
    "By",
    &[],
    "Memory for what copies of functions with `fresh` are put back to: their own pages. 512 MiB at most.",
);
const LOG_LINES_DROPPED: Desc = Desc::new(
    "rekindle.logs.dropped",
    "{line}",
    &[],
    "Lines of functions' logs that were dropped: beyond the rate, or faster than the disk.",
);

/// What is observed.
#[derive(Default)]
pub struct Observed {
    /// All instances.
    pub instances: Weak<Instances>,
    /// Sandboxes created ahead.
    pub pool: Weak<SandboxPool>,
    /// What limits starts.
    pub start_limiter: Weak<StartLimiter>,
    /// What puts copies back.
    pub resetter: Weak<Resetter>,
    /// Open snapshots.
    pub snapshots: Weak<Snapshots>,
    /// Unpacked layers.
    pub layers: Weak<Layers>,
    /// Where idle memory goes.
    pub idle: Weak<IdleMemory>,
    /// Functions' logs.
    pub logs: Weak<Logs>,
    /// The worker's metrics, with the counts of its pagers.
    pub metrics: Weak<Metrics>,
    /// The cache directory.
    pub cache_dir: PathBuf,
    /// Size limit of installed dependencies, in bytes.
    pub dependencies_limit_bytes: u64,
}

/// Registers the values.
pub fn observe(registry: &Registry, observed: &Observed) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    instances::observe(registry, &observed.instances);
    sandboxes::observe(registry, &observed.pool, &observed.start_limiter);
    pagers::observe(registry, &observed.metrics);
    snapshots::observe(registry, &observed.snapshots);
    idle::observe(registry, &observed.idle);

    let cache_dir = observed.cache_dir.clone();
    registry.observe_one(gauge, &DISK_FREE, move || {
        free_bytes(&cache_dir).map_or(f64::NAN, |bytes| bytes as f64)
    });
    let builds = observed.cache_dir.join("build");
    registry.observe_one(gauge, &DEPENDENCIES, move || build::dependencies_bytes(&builds) as f64);
    let limit = observed.dependencies_limit_bytes;
    registry.observe_one(gauge, &DEPENDENCIES_LIMIT, move || limit as f64);
    let layers = ObservedComponent {
        registry,
        part: Weak::clone(&observed.layers),
    };
    layers.one(gauge, &LAYERS, |layers| layers.usage().bytes as f64);
    layers.one(gauge, &LAYERS_LIMIT, |layers| layers.usage().limit_bytes as f64);
    layers.one(counter, &LAYERS_EVICTED, |layers| layers.usage().evicted_bytes as f64);
    layers.many(counter, &LAYERS_FETCHED, |layers| layers.lazy_usage().fetched);
    layers.one(counter, &LAYERS_FAILED, |layers| layers.lazy_usage().failed as f64);
    let resetter = ObservedComponent {
        registry,
        part: Weak::clone(&observed.resetter),
    };
    resetter.one(gauge, &FRESH_POINTS, |resetter| resetter.held_bytes() as f64);
    let logs = ObservedComponent {
        registry,
        part: Weak::clone(&observed.logs),
    };
    logs.one(counter, &LOG_LINES_DROPPED, |logs| logs.dropped() as f64);
    observe_process(registry);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rekindle_telemetry::metrics::{S3Metrics, documented};

    use super::*;
    use crate::deploy::build::BuildCounts;

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::default();
        S3Metrics::new(&metrics.registry);
        BuildCounts::new(&metrics.registry);
        observe(&metrics.registry, &Observed::default());
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        assert_eq!(documented(&metrics.registry, &document), Ok(()));
    }
}
