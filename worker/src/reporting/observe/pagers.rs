//! Pagers of all instances together.

use std::sync::Weak;

use rekindle_telemetry::metrics::{Desc, Kind, Registry};

use super::part::ObservedComponent;
use crate::metrics::Metrics;

const PAGERS: Desc = Desc::new(
    "rekindle.pager.running",
    "{pager}",
    &[],
    "Pagers: one for each restored instance, and each restore that has begun ahead.",
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

pub(super) fn observe(registry: &Registry, metrics: &Weak<Metrics>) {
    let counter = Kind::Counter;
    let part = Weak::clone(metrics);
    registry.observe_histogram(&FAULT, move || {
        part.upgrade()
            .map(|metrics| metrics.pagers.totals().latency)
            .unwrap_or_default()
    });
    let part = Weak::clone(metrics);
    let metrics = ObservedComponent { registry, part };
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
