//! Snapshots open here, and what their memory is read from.

use std::sync::Weak;

use rekindle_telemetry::metrics::{Desc, Kind, Registry};

use super::part::ObservedComponent;
use crate::snapshots::Snapshots;

const REGIONS: Desc = Desc::new(
    "rekindle.regions.read",
    "{region}",
    &["tier"],
    "Regions read for templates, by where they came from: `disk` or `s3`.",
);
const REGION_BYTES: Desc = Desc::new("rekindle.regions", "By", &["tier"], "Their plain bytes.");
const REGIONS_ALONE: Desc = Desc::new(
    "rekindle.regions.fetched_alone",
    "{region}",
    &[],
    "Of those from `s3`, regions that a request of their own fetched, before the rest of their chunk.",
);
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
const IDLE_TEMPLATES: Desc = Desc::new(
    "rekindle.idle.templates",
    "By",
    &[],
    "Memory of templates taken back since nobody had used them for long.",
);

pub(super) fn observe(registry: &Registry, snapshots: &Weak<Snapshots>) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    let part = Weak::clone(snapshots);
    let snapshots = ObservedComponent { registry, part };
    snapshots.many(counter, &REGIONS, |snapshots| {
        let read = snapshots.reader().counts();
        vec![("disk", read.cached_regions), ("s3", read.fetched_regions)]
    });
    snapshots.many(counter, &REGION_BYTES, |snapshots| {
        let read = snapshots.reader().counts();
        vec![("disk", read.cached_bytes), ("s3", read.fetched_bytes)]
    });
    snapshots.one(counter, &REGIONS_ALONE, |snapshots| {
        snapshots.reader().counts().fetched_alone as f64
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
