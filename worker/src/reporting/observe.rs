//! Levels of a worker, and counters of other crates, read on request.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rekindle_pager::PAGE;
use rekindle_telemetry::metrics::{Desc, Kind, Registry, observe_process};

use crate::deploy::build;
use crate::host::disk::free_bytes;
use crate::host::sandbox::pool::SandboxPool;
use crate::host::start_limiter::StartLimiter;
use crate::idle::IdleMemory;
use crate::idle::zram::Fill;
use crate::instance::{Instance, Instances};
use crate::layers::Layers;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::snapshots::Snapshots;

const INSTANCES: Desc = Desc::new(
    "rekindle.worker.instances",
    "{instance}",
    &["state", "started"],
    "Instances on this worker: `starting`, `ready`, `parked`, `capturing`, `moving`, `stopping`; and how they were started.",
);
const IN_FLIGHT: Desc = Desc::new("rekindle.worker.in_flight", "{invocation}", &[], "Invocations in them.");
const MEMORY: Desc = Desc::new(
    "rekindle.worker.instances.memory",
    "By",
    &[],
    "Memory charged to their control groups.",
);
const DISK_FREE: Desc = Desc::new(
    "rekindle.worker.disk.free",
    "By",
    &[],
    "Free on the disk of its cache. With less than 512 MiB new instances and deploys go to other workers.",
);
const SANDBOXES: Desc = Desc::new(
    "rekindle.sandboxes.ready",
    "{sandbox}",
    &[],
    "Empty sandboxes that are ready: the pool's level.",
);
const SANDBOXES_WANTED: Desc = Desc::new(
    "rekindle.sandboxes.wanted",
    "{sandbox}",
    &[],
    "How many are kept ready: as many as were taken within two seconds lately and a quarter more, within bounds.",
);
const GROUPS: Desc = Desc::new(
    "rekindle.sandboxes.groups",
    "{group}",
    &["outcome"],
    "Control groups of sandboxes that ended: used `again` after they were cleaned, or `refused` since something was left in them.",
);
const STARTS_RUNNING: Desc = Desc::new(
    "rekindle.starts.running",
    "{start}",
    &[],
    "Starts at work on the processors now: no more than their number allows.",
);
const STARTS_WAITING: Desc = Desc::new(
    "rekindle.starts.waiting",
    "{start}",
    &[],
    "Starts that wait for their turn.",
);
const SANDBOXES_TAKEN: Desc = Desc::new(
    "rekindle.sandboxes.taken",
    "{sandbox}",
    &["from"],
    "Sandboxes taken for a start: from the `pool`, or `made` while the start waited.",
);
const SANDBOXES_FAILED: Desc = Desc::new(
    "rekindle.sandboxes.failed",
    "{sandbox}",
    &[],
    "Sandboxes that could not be made.",
);
const PAGERS: Desc = Desc::new(
    "rekindle.pager.running",
    "{pager}",
    &[],
    "Pagers: one for each restored instance.",
);
const FAULTS: Desc = Desc::new("rekindle.pager.faults", "{fault}", &[], "Page faults taken.");
const FAULTS_FETCHED: Desc = Desc::new(
    "rekindle.pager.faults_fetched",
    "{fault}",
    &[],
    "Of them, those that waited for the chunk cache or the store.",
);
const FAULT: Desc = Desc::new(
    "rekindle.pager.fault.duration",
    "s",
    &[],
    "From when the pager was told of a fault until its page was there. Bounds are powers of two, from 1 ns to 8.6 s.",
);
const PAGES: Desc = Desc::new(
    "rekindle.pager.pages",
    "{page}",
    &["how"],
    "Pages given: `let_in` from the template, `copied`, `zeroed`; `around` a touched one; `ahead` of any fault.",
);
const EVENTS: Desc = Desc::new(
    "rekindle.pager.events",
    "{event}",
    &[],
    "Mappings removed, moved or forked that pagers followed.",
);
const REGIONS: Desc = Desc::new(
    "rekindle.regions.read",
    "{region}",
    &["tier"],
    "Regions read for templates, by where they came from: `disk` or `s3`.",
);
const REGION_BYTES: Desc = Desc::new("rekindle.regions", "By", &["tier"], "Their plain bytes.");
const CHUNKS_FETCHED: Desc = Desc::new(
    "rekindle.chunks.fetched",
    "{chunk}",
    &[],
    "Chunks fetched from the store.",
);
const CACHE: Desc = Desc::new("rekindle.chunk_cache", "By", &[], "Chunks in the cache on disk.");
const CACHE_LIMIT: Desc = Desc::new("rekindle.chunk_cache.limit", "By", &[], "How much it may hold.");
const CACHE_LOOKUPS: Desc = Desc::new(
    "rekindle.chunk_cache.lookups",
    "{lookup}",
    &["outcome"],
    "Reads that found their chunk there (`hit`), and chunks that had to be fetched (`miss`).",
);
const CACHE_EVICTED: Desc = Desc::new(
    "rekindle.chunk_cache.evicted",
    "By",
    &[],
    "Chunks that had to go for others.",
);
const LAYERS: Desc = Desc::new("rekindle.layers", "By", &[], "Unpacked layers on disk.");
const LAYERS_LIMIT: Desc = Desc::new("rekindle.layers.limit", "By", &[], "How much they may take.");
const LAYERS_EVICTED: Desc = Desc::new(
    "rekindle.layers.evicted",
    "By",
    &[],
    "Layers that had to go for others.",
);
const DEPENDENCIES: Desc = Desc::new(
    "rekindle.dependencies",
    "By",
    &[],
    "Installed dependencies that are kept for the next build.",
);
const DEPENDENCIES_LIMIT: Desc = Desc::new("rekindle.dependencies.limit", "By", &[], "How much they may take.");
const TEMPLATES: Desc = Desc::new(
    "rekindle.templates",
    "{template}",
    &[],
    "Snapshots open on this host, each with its template.",
);
const TEMPLATE_BYTES: Desc = Desc::new(
    "rekindle.templates.memory",
    "By",
    &[],
    "Memory that templates and images take.",
);
const TEMPLATE_LIMIT: Desc = Desc::new("rekindle.templates.limit", "By", &[], "How much they may take.");
const TEMPLATES_EVICTED: Desc = Desc::new(
    "rekindle.templates.evicted",
    "By",
    &["part"],
    "Memory of templates taken back for want of room: of the `rest`, or of a `working_set`.",
);
const TEMPLATES_CLOSED: Desc = Desc::new(
    "rekindle.templates.closed",
    "{template}",
    &[],
    "Snapshots closed for want of room.",
);
const TEMPLATES_REFUSED: Desc = Desc::new(
    "rekindle.templates.refused",
    "{fill}",
    &[],
    "Times that a template was not filled on for want of room.",
);
const SNAPSHOTS_EXCHANGED: Desc = Desc::new(
    "rekindle.snapshots.exchanged",
    "{open}",
    &[],
    "Snapshots that were not opened since their manifest is not the one that the scheduler knows by its digest: \
     functions booted.",
);
const WORKING_SETS_REFUSED: Desc = Desc::new(
    "rekindle.working_sets.refused",
    "{set}",
    &[],
    "Working sets that were damaged or held other bytes than their snapshot: restores went on by faults.",
);
const IDLE_SWAP: Desc = Desc::new(
    "rekindle.idle.swap",
    "1",
    &["kind"],
    "1 for where written pages go that are not touched for a while: `own_zram`, `host_zram`, `zswap`, or `none`.",
);
const IDLE_EVICTED: Desc = Desc::new(
    "rekindle.idle.evicted",
    "By",
    &["state"],
    "Memory of instances evicted while they were `parked` or `warm`. It counts again each time it goes.",
);
const IDLE_RETURNED: Desc = Desc::new(
    "rekindle.idle.returned",
    "By",
    &[],
    "Of it, what was touched again, as far as it was seen: by looks, not by faults.",
);
const IDLE_SWAPPED: Desc = Desc::new(
    "rekindle.idle.swapped",
    "By",
    &[],
    "Memory of instances that is evicted now.",
);
const IDLE_DEVICE: Desc = Desc::new(
    "rekindle.idle.zram",
    "By",
    &["what"],
    "Of the zram device that it is in: what was put there (`plain`), what it is `compressed`, and the `memory` that the device takes.",
);
const IDLE_TEMPLATES: Desc = Desc::new(
    "rekindle.idle.templates",
    "By",
    &[],
    "Memory of templates taken back since nobody had used them for long.",
);
const IDLE_WATCHED: Desc = Desc::new(
    "rekindle.idle.watched",
    "{process}",
    &[],
    "Processes of which DAMON tells what they do not touch; of others evicted pages tell by coming back.",
);
const IDLE_HELD_BACK: Desc = Desc::new(
    "rekindle.idle.held_back",
    "{pass}",
    &["since"],
    "Looks that evicted nothing of running instances since memory was short (`pressure`), or nothing at all since the swap was nearly `full`.",
);
const IDLE_CPU: Desc = Desc::new(
    "rekindle.idle.cpu",
    "s",
    &[],
    "Processor time of the thread that evicts, compression included: a twentieth of one processor at most. The kernel's own threads that watch are not in it.",
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

/// One part of the worker. If it is gone, it has no values.
struct Part<'a, T> {
    registry: &'a Registry,
    part: Weak<T>,
}

impl<T: Send + Sync + 'static> Part<'_, T> {
    fn one(&self, kind: Kind, desc: &'static Desc, read: fn(&T) -> f64) {
        let part = Weak::clone(&self.part);
        self.registry
            .observe_one(kind, desc, move || part.upgrade().map_or(0.0, |part| read(&part)));
    }

    fn many(&self, kind: Kind, desc: &'static Desc, read: fn(&T) -> Vec<(&'static str, u64)>) {
        let part = Weak::clone(&self.part);
        self.registry.observe(kind, desc, move || {
            let read = part.upgrade().map(|part| read(&part)).unwrap_or_default();
            read.into_iter()
                .map(|(label, n)| (vec![label.to_owned()], n as f64))
                .collect()
        });
    }
}

/// Registers the values.
pub fn observe(registry: &Registry, observed: &Observed) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    instances(registry, &observed.instances);
    sandboxes(registry, observed);
    pagers(registry, &observed.metrics);
    snapshots(registry, &observed.snapshots);
    idle(registry, &observed.idle);

    let cache_dir = observed.cache_dir.clone();
    registry.observe_one(gauge, &DISK_FREE, move || {
        free_bytes(&cache_dir).map_or(f64::NAN, |bytes| bytes as f64)
    });
    let builds = observed.cache_dir.join("build");
    registry.observe_one(gauge, &DEPENDENCIES, move || build::dependencies_bytes(&builds) as f64);
    let limit = observed.dependencies_limit_bytes;
    registry.observe_one(gauge, &DEPENDENCIES_LIMIT, move || limit as f64);
    let layers = Part {
        registry,
        part: Weak::clone(&observed.layers),
    };
    layers.one(gauge, &LAYERS, |layers| layers.usage().bytes as f64);
    layers.one(gauge, &LAYERS_LIMIT, |layers| layers.usage().limit_bytes as f64);
    layers.one(counter, &LAYERS_EVICTED, |layers| layers.usage().evicted_bytes as f64);
    let logs = Part {
        registry,
        part: Weak::clone(&observed.logs),
    };
    logs.one(counter, &LOG_LINES_DROPPED, |logs| logs.dropped() as f64);
    observe_process(registry);
}

fn instances(registry: &Registry, instances: &Weak<Instances>) {
    let part = Weak::clone(instances);
    registry.observe(Kind::Gauge, &INSTANCES, move || {
        part.upgrade().map(|instances| by_state(&instances)).unwrap_or_default()
    });
    let part = Weak::clone(instances);
    let instances = Part { registry, part };
    instances.one(Kind::Gauge, &IN_FLIGHT, |instances| {
        instances.all().iter().map(|i| f64::from(i.usage.in_flight())).sum()
    });
    instances.one(Kind::Gauge, &MEMORY, |instances| {
        let memory = |i: &Arc<Instance>| i.parts()?.cgroup.memory_current().ok();
        instances.all().iter().filter_map(memory).sum::<u64>() as f64
    });
    instances.one(Kind::Gauge, &IDLE_SWAPPED, |instances| {
        let swapped = |i: &Arc<Instance>| i.parts()?.cgroup.swap_current().ok();
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

fn sandboxes(registry: &Registry, observed: &Observed) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    let pool = Part {
        registry,
        part: Weak::clone(&observed.pool),
    };
    pool.one(gauge, &SANDBOXES, |pool| pool.counts().ready as f64);
    pool.one(gauge, &SANDBOXES_WANTED, |pool| pool.counts().wanted as f64);
    pool.many(counter, &GROUPS, |pool| {
        let groups = pool.counts().groups;
        vec![("again", groups.used_again), ("refused", groups.refused)]
    });
    pool.many(counter, &SANDBOXES_TAKEN, |pool| {
        let counts = pool.counts();
        vec![("pool", counts.from_pool), ("made", counts.made_while_waiting)]
    });
    pool.one(counter, &SANDBOXES_FAILED, |pool| pool.counts().failed as f64);
    let starts = Part {
        registry,
        part: Weak::clone(&observed.start_limiter),
    };
    starts.one(gauge, &STARTS_RUNNING, |starts| starts.running() as f64);
    starts.one(gauge, &STARTS_WAITING, |starts| starts.waiting() as f64);
}

fn pagers(registry: &Registry, metrics: &Weak<Metrics>) {
    let counter = Kind::Counter;
    let part = Weak::clone(metrics);
    registry.observe_histogram(&FAULT, move || {
        part.upgrade()
            .map(|metrics| metrics.pagers.totals().latency)
            .unwrap_or_default()
    });
    let part = Weak::clone(metrics);
    let metrics = Part { registry, part };
    metrics.one(Kind::Gauge, &PAGERS, |metrics| metrics.pagers.totals().pagers as f64);
    metrics.one(counter, &FAULTS, |metrics| metrics.pagers.totals().faults as f64);
    metrics.one(counter, &FAULTS_FETCHED, |metrics| {
        metrics.pagers.totals().fetched as f64
    });
    metrics.many(counter, &PAGES, |metrics| {
        let pages = metrics.pagers.totals().pages.into_iter();
        pages.filter(|p| !p.0.is_empty()).collect()
    });
    metrics.one(counter, &EVENTS, |metrics| metrics.pagers.totals().events as f64);
}

fn snapshots(registry: &Registry, snapshots: &Weak<Snapshots>) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    let part = Weak::clone(snapshots);
    let snapshots = Part { registry, part };
    snapshots.many(counter, &REGIONS, |snapshots| {
        let read = snapshots.reader().counts();
        vec![("disk", read.cached_regions), ("s3", read.fetched_regions)]
    });
    snapshots.many(counter, &REGION_BYTES, |snapshots| {
        let read = snapshots.reader().counts();
        vec![("disk", read.cached_bytes), ("s3", read.fetched_bytes)]
    });
    snapshots.one(counter, &CHUNKS_FETCHED, |snapshots| {
        snapshots.reader().counts().fetched_chunks as f64
    });
    snapshots.one(gauge, &CACHE, |snapshots| snapshots.reader().cache_usage().bytes as f64);
    snapshots.one(gauge, &CACHE_LIMIT, |snapshots| {
        snapshots.reader().cache_usage().max_bytes as f64
    });
    snapshots.many(counter, &CACHE_LOOKUPS, |snapshots| {
        let usage = snapshots.reader().cache_usage();
        vec![("hit", usage.hits), ("miss", usage.misses)]
    });
    snapshots.one(counter, &CACHE_EVICTED, |snapshots| {
        snapshots.reader().cache_usage().evicted_bytes as f64
    });
    snapshots.one(gauge, &TEMPLATES, |snapshots| snapshots.usage().open as f64);
    snapshots.one(gauge, &TEMPLATE_BYTES, |snapshots| snapshots.usage().bytes as f64);
    snapshots.one(gauge, &TEMPLATE_LIMIT, |snapshots| snapshots.usage().limit_bytes as f64);
    snapshots.many(counter, &TEMPLATES_EVICTED, |snapshots| {
        let usage = snapshots.usage();
        vec![("rest", usage.rest_bytes), ("working_set", usage.working_set_bytes)]
    });
    snapshots.one(counter, &TEMPLATES_CLOSED, |snapshots| snapshots.usage().closed as f64);
    snapshots.one(counter, &TEMPLATES_REFUSED, |snapshots| {
        snapshots.usage().refused as f64
    });
    snapshots.one(counter, &SNAPSHOTS_EXCHANGED, |snapshots| snapshots.exchanged() as f64);
    snapshots.one(counter, &WORKING_SETS_REFUSED, |snapshots| {
        snapshots.refused_working_sets() as f64
    });
    snapshots.one(counter, &IDLE_TEMPLATES, |snapshots| {
        snapshots.usage().idle_bytes as f64
    });
}

fn idle(registry: &Registry, idle: &Weak<IdleMemory>) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    let part = Weak::clone(idle);
    let idle = Part { registry, part };
    idle.many(gauge, &IDLE_SWAP, |idle| vec![(idle.swap_kind(), 1)]);
    idle.many(counter, &IDLE_EVICTED, |idle| {
        let bytes = |pages: &AtomicU64| pages.load(Ordering::Relaxed) * PAGE;
        vec![
            ("parked", bytes(&idle.counts.parked_pages)),
            ("warm", bytes(&idle.counts.warm_pages)),
        ]
    });
    idle.one(counter, &IDLE_RETURNED, |idle| {
        (idle.counts.returned_pages.load(Ordering::Relaxed) * PAGE) as f64
    });
    idle.many(gauge, &IDLE_DEVICE, |idle| {
        let figures = |f: Fill| vec![("plain", f.plain), ("compressed", f.compressed), ("memory", f.memory)];
        idle.fill().map(figures).unwrap_or_default()
    });
    idle.one(gauge, &IDLE_WATCHED, |idle| {
        idle.counts.watched.load(Ordering::Relaxed) as f64
    });
    idle.many(counter, &IDLE_HELD_BACK, |idle| {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("pressure", count(&idle.counts.pressed)),
            ("full", count(&idle.counts.full)),
        ]
    });
    idle.one(counter, &IDLE_CPU, |idle| {
        Duration::from_nanos(idle.counts.cpu_ns.load(Ordering::Relaxed)).as_secs_f64()
    });
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
