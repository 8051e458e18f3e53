//! Expected time of each way to serve an invocation, in milliseconds until the function has it: measured constants, and
//! a little queueing theory. docs/decisions/0015-placement.md says where the figures come from.

use rekindle_wire::api::StartKind;

use super::sites::{Tier, as_f64};

/// Thawing a parked instance, compared with a warm one.
pub(crate) const PARKED: f64 = 1.0;
/// A restore on a worker that has the snapshot's template open. It is also the most that remains of a restore in
/// progress.
pub(crate) const FROM_TEMPLATE: f64 = 20.0;
/// A restore where the chunks are on the disk: the manifest is fetched, its images are written, and the working set is
/// read and decompressed.
pub(crate) const FROM_DISK: f64 = 45.0;
/// A restore where nothing of the snapshot is held: two round trips to the store.
pub(crate) const FROM_STORE: f64 = 100.0;
/// A boot on a worker that has the function's files.
pub(crate) const BOOT: f64 = 220.0;
/// Fetching and unpacking the function's files, in addition.
pub(crate) const FILES: f64 = 100.0;

/// Processor time of an invocation. It is unknown, but not zero.
pub(crate) const INVOCATION: f64 = 5.0;
/// Processor time of a restore.
const RESTORE: f64 = 12.0;

/// Value of having a function's instances in several zones: if all were in one that fails, each would be restored from
/// the store.
pub(crate) const SPREAD: f64 = 100.0;
/// Value of a worker keeping some of its memory free: what is placed on a full one evicts another, which will be
/// restored.
pub(crate) const CROWDED: f64 = FROM_TEMPLATE;
/// Share of its memory from which a worker counts as crowded.
const CROWDED_FROM: f64 = 0.8;
/// How long a request waits for the most recently used instance before another is used. Instances that are used less
/// become idle and are retired.
pub(crate) const LATEST: f64 = 5.0;

/// Bytes of free disk below which a worker is chosen last for anything new: it can keep no files, chunks or images.
pub(crate) const DISK_LEAST: u64 = 512 << 20;

/// Highest load that counts: the formula has no bound, and a report is some seconds old.
const BUSIEST: f64 = 0.95;

/// Processor time of a start, milliseconds.
pub(crate) fn work(kind: StartKind) -> f64 {
    match kind {
        StartKind::Booted => BOOT,
        StartKind::Restored => RESTORE,
        StartKind::Warm | StartKind::Parked => 0.0,
    }
}

/// Duration of a start on an idle worker.
pub(crate) fn start(kind: StartKind, tier: Option<Tier>, has_run: bool) -> f64 {
    match (kind, tier) {
        (StartKind::Booted, _) if has_run => BOOT,
        (StartKind::Booted, _) => BOOT + FILES,
        (_, Some(Tier::Template)) => FROM_TEMPLATE,
        (_, Some(Tier::Disk)) => FROM_DISK,
        (_, None) => FROM_STORE,
    }
}

/// How long work waits for a processor on a host whose `cpus` are busy to this share, in multiples of its own length.
/// This is Sakasegawa's approximation of M/M/c (An approximation formula L_q = α·ρ^β/(1−ρ), 1977).
pub(crate) fn queue(busy: f64, cpus: u32) -> f64 {
    let cpus = f64::from(cpus.max(1));
    let busy = busy.clamp(0.0, BUSIEST);
    busy.powf((2.0 * (cpus + 1.0)).sqrt() - 1.0) / (cpus * (1.0 - busy))
}

/// Cost of having a worker's memory set aside, all but `room` of its `capacity`.
pub(crate) fn crowding(room: u64, capacity: u64) -> f64 {
    let taken = 1.0 - as_f64(room) / as_f64(capacity.max(1));
    CROWDED * ((taken - CROWDED_FROM) / (1.0 - CROWDED_FROM)).max(0.0)
}

/// Cost of another instance in a zone that has `here` of `all` in all `zones`, while one zone has only `least`. It is
/// the full value of spreading if that zone has none and the others hardly more, and little if it is a few of many.
pub(crate) fn spread(here: usize, least: usize, all: usize, zones: usize) -> f64 {
    let even = as_f64(all as u64) / as_f64(zones.max(1) as u64);
    SPREAD * as_f64((here.saturating_sub(least)) as u64) / even.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_on_a_busy_host_and_less_where_there_are_more_processors() {
        assert!(queue(0.0, 8) < 1e-9 && queue(0.5, 8) < 0.1);
        // M/M/1: rho / (1 - rho).
        assert!((queue(0.5, 1) - 1.0).abs() < 1e-9);
        assert!(queue(0.9, 2) > queue(0.9, 8) && queue(0.9, 8) > queue(0.9, 64));
        assert_eq!(queue(7.0, 4), queue(BUSIEST, 4));
    }

    #[test]
    fn tiers_cost_more_the_further_away_they_are() {
        let tiers = [Some(Tier::Template), Some(Tier::Disk), None];
        let costs = tiers.map(|tier| start(StartKind::Restored, tier, false));
        assert!(PARKED < costs[0] && costs.is_sorted() && costs[2] < BOOT);
    }

    #[test]
    fn a_zone_without_an_instance_is_worth_a_restore_from_the_store_and_a_small_difference_little() {
        assert!(FROM_TEMPLATE + spread(1, 0, 2, 3) > FROM_STORE);
        assert!(spread(34, 33, 100, 3) < 4.0 && spread(5, 5, 15, 3) < 1e-9);
    }

    #[test]
    fn a_worker_is_crowded_when_little_is_left() {
        assert_eq!((crowding(50, 100), crowding(0, 100)), (0.0, CROWDED));
        assert!(crowding(10, 100) > 0.4 * CROWDED);
    }
}
