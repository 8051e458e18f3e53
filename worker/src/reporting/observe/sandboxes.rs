//! Sandboxes created ahead, and starts.

use std::sync::Weak;

use rekindle_telemetry::metrics::{Desc, Kind, Registry};

use super::part::ObservedComponent;
use crate::host::sandbox::pool::SandboxPool;
use crate::host::start_limiter::StartLimiter;

const SANDBOXES: Desc = Desc::new(
    "rekindle.sandboxes.ready",
    "{sandbox}",
    &[],
    "Empty sandboxes that are ready: the pool's level.",
);
const SANDBOXES_FURNISHED: Desc = Desc::new(
    "rekindle.sandboxes.furnished",
    "{sandbox}",
    &[],
    "Sandboxes in which the files of a function restored in the last minute are mounted ahead, besides the empty ones.",
);
const SANDBOXES_BEGUN: Desc = Desc::new(
    "rekindle.sandboxes.begun",
    "{sandbox}",
    &[],
    "Furnished sandboxes in which a restore has begun: memory is mapped and filled, most files are open.",
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
    "Control groups of sandboxes that ended: used `again` after they were cleaned, or `refused` since something \
     was left in them.",
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

pub(super) fn observe(registry: &Registry, pool: &Weak<SandboxPool>, starts: &Weak<StartLimiter>) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    let pool = ObservedComponent {
        registry,
        part: Weak::clone(pool),
    };
    pool.one(gauge, &SANDBOXES, |pool| pool.counts().ready as f64);
    pool.one(gauge, &SANDBOXES_FURNISHED, |pool| pool.counts().furnished as f64);
    pool.one(gauge, &SANDBOXES_BEGUN, |pool| pool.counts().begun as f64);
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
    let starts = ObservedComponent {
        registry,
        part: Weak::clone(starts),
    };
    starts.one(gauge, &STARTS_RUNNING, |starts| starts.running() as f64);
    starts.one(gauge, &STARTS_WAITING, |starts| starts.waiting() as f64);
}
