//! Idle memory.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rekindle_pager::PAGE;
use rekindle_telemetry::metrics::{Desc, Kind, Registry};

use super::part::ObservedComponent;
use crate::idle::IdleMemory;
use crate::idle::zram::ZramUsage;

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
    "The part of it that was touched again, as far as scans have seen it. Faults are not counted.",
);
const IDLE_DEVICE: Desc = Desc::new(
    "rekindle.idle.zram",
    "By",
    &["what"],
    "Of the zram device that it is in: what was put there (`plain`), what it is `compressed`, and the `memory` \
     that the device takes.",
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
    "Looks that evicted nothing of running instances since memory was short (`pressure`), or nothing at all \
     since the swap was nearly `full`.",
);
const IDLE_CPU: Desc = Desc::new(
    "rekindle.idle.cpu",
    "s",
    &[],
    "Processor time of the thread that evicts, compression included: a twentieth of one processor at most. The \
     kernel's own threads that watch are not in it.",
);

pub(super) fn observe(registry: &Registry, idle: &Weak<IdleMemory>) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    let part = Weak::clone(idle);
    let idle = ObservedComponent { registry, part };
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
        let figures = |f: ZramUsage| vec![("plain", f.plain), ("compressed", f.compressed), ("memory", f.memory)];
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
