//! Levels of a worker, and counters of other crates, read on request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rekindle_pager::PAGE;
use rekindle_telemetry::metrics::{Desc, Kind, Registry, observe_process};

use crate::deploy::build;
use crate::idle::zram::Fill;
use crate::worker::Worker;

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

/// Registers them. A worker that is gone has no values.
pub fn observe(registry: &Registry, worker: &Weak<Worker>) {
    let one = |kind, desc, read: fn(&Worker) -> f64| {
        let weak = Weak::clone(worker);
        registry.observe_one(kind, desc, move || weak.upgrade().map_or(0.0, |w| read(&w)));
    };
    let many = |kind, desc, read: fn(&Worker) -> Vec<(&'static str, u64)>| {
        let weak = Weak::clone(worker);
        registry.observe(kind, desc, move || {
            let read = weak.upgrade().map(|w| read(&w)).unwrap_or_default();
            read.into_iter()
                .map(|(label, n)| (vec![label.to_owned()], n as f64))
                .collect()
        });
    };
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);

    let weak = Weak::clone(worker);
    registry.observe(gauge, &INSTANCES, move || {
        weak.upgrade().map(|w| instances(&w)).unwrap_or_default()
    });
    one(gauge, &IN_FLIGHT, |w| {
        w.all_instances().iter().map(|i| f64::from(i.usage.in_flight())).sum()
    });
    one(gauge, &MEMORY, |w| {
        let memory = |i: &Arc<crate::instance::Instance>| i.parts()?.cgroup.memory_current().ok();
        w.all_instances().iter().filter_map(memory).sum::<u64>() as f64
    });
    one(gauge, &DISK_FREE, |w| {
        super::disk_free(&w.config.cache_dir).map_or(f64::NAN, |bytes| bytes as f64)
    });
    one(gauge, &SANDBOXES, |w| w.pool.counts().ready as f64);
    one(gauge, &SANDBOXES_WANTED, |w| w.pool.counts().wanted as f64);
    many(counter, &GROUPS, |w| {
        let groups = w.pool.counts().groups;
        vec![("again", groups.used_again), ("refused", groups.refused)]
    });
    one(gauge, &STARTS_RUNNING, |w| w.start_limiter.running() as f64);
    one(gauge, &STARTS_WAITING, |w| w.start_limiter.waiting() as f64);
    many(counter, &SANDBOXES_TAKEN, |w| {
        let counts = w.pool.counts();
        vec![("pool", counts.from_pool), ("made", counts.made_while_waiting)]
    });
    one(counter, &SANDBOXES_FAILED, |w| w.pool.counts().failed as f64);
    one(gauge, &PAGERS, |w| w.metrics.pagers.totals().pagers as f64);
    one(counter, &FAULTS, |w| w.metrics.pagers.totals().faults as f64);
    one(counter, &FAULTS_FETCHED, |w| w.metrics.pagers.totals().fetched as f64);
    let weak = Weak::clone(worker);
    registry.observe_histogram(&FAULT, move || {
        weak.upgrade()
            .map(|w| w.metrics.pagers.totals().latency)
            .unwrap_or_default()
    });
    many(counter, &PAGES, |w| {
        w.metrics
            .pagers
            .totals()
            .pages
            .into_iter()
            .filter(|p| !p.0.is_empty())
            .collect()
    });
    one(counter, &EVENTS, |w| w.metrics.pagers.totals().events as f64);
    many(counter, &REGIONS, |w| {
        let read = w.snapshots.reader().counts();
        vec![("disk", read.cached_regions), ("s3", read.fetched_regions)]
    });
    many(counter, &REGION_BYTES, |w| {
        let read = w.snapshots.reader().counts();
        vec![("disk", read.cached_bytes), ("s3", read.fetched_bytes)]
    });
    one(counter, &CHUNKS_FETCHED, |w| {
        w.snapshots.reader().counts().fetched_chunks as f64
    });
    one(gauge, &CACHE, |w| w.snapshots.reader().cache_usage().bytes as f64);
    one(gauge, &CACHE_LIMIT, |w| {
        w.snapshots.reader().cache_usage().max_bytes as f64
    });
    many(counter, &CACHE_LOOKUPS, |w| {
        let usage = w.snapshots.reader().cache_usage();
        vec![("hit", usage.hits), ("miss", usage.misses)]
    });
    one(counter, &CACHE_EVICTED, |w| {
        w.snapshots.reader().cache_usage().evicted_bytes as f64
    });
    one(gauge, &LAYERS, |w| w.layers.usage().bytes as f64);
    one(gauge, &LAYERS_LIMIT, |w| w.layers.usage().limit_bytes as f64);
    one(counter, &LAYERS_EVICTED, |w| w.layers.usage().evicted_bytes as f64);
    one(gauge, &DEPENDENCIES, |w| {
        build::dependencies_bytes(&w.config.cache_dir.join("build")) as f64
    });
    one(gauge, &DEPENDENCIES_LIMIT, |w| w.config.build_limits.cache_bytes as f64);
    one(gauge, &TEMPLATES, |w| w.snapshots.usage().open as f64);
    one(gauge, &TEMPLATE_BYTES, |w| w.snapshots.usage().bytes as f64);
    one(gauge, &TEMPLATE_LIMIT, |w| w.snapshots.usage().limit_bytes as f64);
    many(counter, &TEMPLATES_EVICTED, |w| {
        let usage = w.snapshots.usage();
        vec![("rest", usage.rest_bytes), ("working_set", usage.working_set_bytes)]
    });
    one(counter, &TEMPLATES_CLOSED, |w| w.snapshots.usage().closed as f64);
    one(counter, &TEMPLATES_REFUSED, |w| w.snapshots.usage().refused as f64);
    one(counter, &SNAPSHOTS_EXCHANGED, |w| w.snapshots.exchanged() as f64);
    one(counter, &WORKING_SETS_REFUSED, |w| {
        w.snapshots.refused_working_sets() as f64
    });
    many(gauge, &IDLE_SWAP, |w| vec![(w.idle.swap_kind(), 1)]);
    many(counter, &IDLE_EVICTED, |w| {
        let bytes = |pages: &AtomicU64| pages.load(Ordering::Relaxed) * PAGE;
        let counts = &w.idle.counts;
        vec![
            ("parked", bytes(&counts.parked_pages)),
            ("warm", bytes(&counts.warm_pages)),
        ]
    });
    one(counter, &IDLE_RETURNED, |w| {
        (w.idle.counts.returned_pages.load(Ordering::Relaxed) * PAGE) as f64
    });
    one(gauge, &IDLE_SWAPPED, |w| {
        let swapped = |i: &Arc<crate::instance::Instance>| i.parts()?.cgroup.swap_current().ok();
        w.all_instances().iter().filter_map(swapped).sum::<u64>() as f64
    });
    many(gauge, &IDLE_DEVICE, |w| {
        let fill = w.idle.fill();
        let figures = |f: Fill| vec![("plain", f.plain), ("compressed", f.compressed), ("memory", f.memory)];
        fill.map(figures).unwrap_or_default()
    });
    one(counter, &IDLE_TEMPLATES, |w| w.snapshots.usage().idle_bytes as f64);
    one(gauge, &IDLE_WATCHED, |w| {
        w.idle.counts.watched.load(Ordering::Relaxed) as f64
    });
    many(counter, &IDLE_HELD_BACK, |w| {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("pressure", count(&w.idle.counts.pressed)),
            ("full", count(&w.idle.counts.full)),
        ]
    });
    one(counter, &IDLE_CPU, |w| {
        Duration::from_nanos(w.idle.counts.cpu_ns.load(Ordering::Relaxed)).as_secs_f64()
    });
    one(counter, &LOG_LINES_DROPPED, |w| w.logs.dropped() as f64);
    observe_process(registry);
}

fn instances(worker: &Worker) -> Vec<(Vec<String>, f64)> {
    let mut all: BTreeMap<Vec<String>, f64> = BTreeMap::new();
    for instance in worker.all_instances() {
        let state = instance.state().as_str();
        let labels = [state, instance.kind.lock().as_str()].map(str::to_owned).to_vec();
        *all.entry(labels).or_default() += 1.0;
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rekindle_telemetry::metrics::{S3Metrics, documented};

    use super::super::Metrics;
    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::default();
        S3Metrics::new(&metrics.registry);
        observe(&metrics.registry, &Weak::new());
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        assert_eq!(documented(&metrics.registry, &document), Ok(()));
    }
}
