//! Which workers are hot, and which instances should move off them.
//!
//! ```text
//!   cool ──busy, well above the mean, for a while──> hot ──less busy again──> cool
//!                                                     │
//!                                                     └─ one instance in use moves to a worker that stays
//!                                                        cooler than this one
//! ```
//!
//! The source's load is split evenly among its instances in use. A move is planned only if the target, with the
//! instance's share added, stays less busy than the source was. So nothing moves back, and an instance that alone heats
//! its worker stays. After a move both workers are left alone until their reports reflect it, and the instance for
//! minutes.

use std::collections::HashMap;

use rekindle_wire::{InstanceId, WorkerId};

use super::sites::as_f64;
use super::{Fleet, Instance, Stage, Worker};
use crate::clock::Millis;

/// Factor above the mean load of all workers from which a worker is hot.
const ABOVE_MEAN: f64 = 1.3;
/// A hot worker is cool again below this share of the limit.
const COOL_AGAIN: f64 = 0.8;
/// How long a worker must be hot before anything moves.
const HOT_FOR: Millis = Millis(10_000);
/// How long source and target are left alone after a move: the load they report changes over some seconds.
const SETTLE: Millis = Millis(20_000);
/// Minimum gain: how much less busy the target must be after the move than the source was before.
const GAIN: f64 = 0.1;
/// Minimum interval between two moves of one instance by the platform.
pub(crate) const REST: Millis = Millis(300_000);
/// Maximum number of moves in flight, over all workers.
const AT_ONCE: usize = 4;

/// State kept between two calls of `look`.
#[derive(Debug, Default)]
pub(crate) struct Heat {
    /// When each hot worker became hot.
    since: HashMap<WorkerId, Millis>,
    /// Until when each worker is left alone after a move.
    resting: HashMap<WorkerId, Millis>,
}

/// A move to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relief {
    pub(crate) instance: InstanceId,
    pub(crate) to: WorkerId,
}

impl Heat {
    /// Examines all workers and returns the moves to make, which count as made. A worker can be hot only if at least
    /// `hot_at` of its processor time is in use.
    pub(crate) fn look(&mut self, fleet: &Fleet, hot_at: f64, now: Millis) -> Vec<Relief> {
        let serving = || fleet.workers.iter().filter(|(_, w)| w.takes_new());
        let count = serving().count();
        if count < 2 || hot_at <= 0.0 {
            self.since.clear();
            return Vec::new();
        }
        let mean = serving().map(|(_, w)| busy(w)).sum::<f64>() / as_f64(count as u64);
        let limit = hot_at.max(mean * ABOVE_MEAN);
        self.since.retain(|id, _| {
            let worker = fleet.workers.get(id).filter(|w| w.takes_new());
            worker.is_some_and(|w| busy(w) >= limit * COOL_AGAIN)
        });
        self.resting.retain(|_, until| *until > now);
        for (id, _) in serving().filter(|(_, w)| busy(w) >= limit) {
            self.since.entry(id.clone()).or_insert(now);
        }
        let ripe = |(_, since): &(&WorkerId, &Millis)| now.since(**since) >= HOT_FOR;
        let mut hot: Vec<_> = self.since.iter().filter(ripe).map(|(id, _)| id.clone()).collect();
        if hot.is_empty() {
            return Vec::new();
        }
        // Hottest first.
        let heat = |id: &WorkerId| fleet.workers.get(id).map_or(0.0, busy);
        hot.sort_by(|a, b| heat(b).total_cmp(&heat(a)).then_with(|| a.cmp(b)));
        let mut moving = fleet.moving();
        let mut reliefs = Vec::new();
        for from in hot {
            if moving >= AT_ONCE {
                break;
            }
            if !self.resting.contains_key(&from)
                && let Some(relief) = self.relief(fleet, &from, now)
            {
                moving += 1;
                for worker in [&from, &relief.to] {
                    self.resting.insert(worker.clone(), now.plus(SETTLE));
                }
                reliefs.push(relief);
            }
        }
        reliefs
    }

    /// Picks an instance to move off a hot worker, and its target.
    fn relief(&self, fleet: &Fleet, from: &WorkerId, now: Millis) -> Option<Relief> {
        let source = fleet.workers.get(from)?;
        let here = || fleet.instances.on(from).filter(|(_, i)| is_used(i));
        // Processors that one instance is assumed to keep busy. The load is not measured for each instance.
        let each = busy(source) * cpus(source) / as_f64(here().count().max(1) as u64);
        let may_move = |i: &Instance| {
            i.stage == Stage::Ready && i.moving.is_none() && i.draining.is_none() && !i.condemned && i.move_after <= now
        };
        let movable = here().filter(|(_, i)| may_move(i));
        let (id, instance) = movable.max_by_key(|(id, i)| (i.in_flight, std::cmp::Reverse((i.memory_now, *id))))?;
        let after = |w: &Worker| busy(w) + each / cpus(w);
        let fits = |id: &WorkerId| {
            fleet
                .instances
                .sites()
                .get(id)
                .is_some_and(|s| s.room() >= instance.memory)
        };
        let sets = source.offer.instruction_sets;
        let targets = fleet.workers.iter().filter(|(id, w)| {
            *id != from
                && w.offer.instruction_sets.lacks(sets).is_empty()
                && w.takes_new()
                && !w.guard.is_short()
                && after(w) + GAIN < busy(source)
                && !self.resting.contains_key(*id)
                && fits(id)
        });
        let (to, _) = targets.min_by(|(a, x), (b, y)| after(x).total_cmp(&after(y)).then_with(|| a.cmp(b)))?;
        Some(Relief {
            instance: id.clone(),
            to: to.clone(),
        })
    }
}

fn busy(worker: &Worker) -> f64 {
    worker.levels.busy.clamp(0.0, 1.0)
}

fn cpus(worker: &Worker) -> f64 {
    f64::from(worker.offer.cpus.max(1))
}

fn is_used(instance: &Instance) -> bool {
    instance.in_flight > 0 || instance.lease.is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::moves::Move;
    use super::*;
    use crate::catalog::ClaimedVersion;
    use crate::catalog::LiveVersion;
    use crate::fixture::{beat, gateway, live, spec, worker};
    use rekindle_wire::api::StartKind;

    const HOT_AT: f64 = 0.85;

    fn report(fleet: &mut Fleet, n: usize, busy: f64, now: Millis) {
        let listed: Vec<_> = fleet
            .instances
            .on(&worker(n))
            .map(|(id, i)| {
                let mut info = crate::fixture::info(id, &hello().spec, n, 1, 0);
                info.version = i.version;
                info
            })
            .collect();
        let mut beat = beat(n, 1, 1 << 30, listed);
        beat.levels.busy = busy;
        beat.offer.cpus = 4;
        fleet.heartbeat(&beat, now, |_, _| ClaimedVersion::Unknown);
    }

    fn hello() -> LiveVersion {
        live(spec("hello", 1, 1 << 20, 1, 1_000))
    }

    /// Workers with the given loads, each with `each` instances in use.
    fn fleet(loads: &[f64], each: usize) -> Fleet {
        let mut fleet = Fleet::default();
        for (n, busy) in loads.iter().enumerate() {
            report(&mut fleet, n, *busy, Millis(0));
            for i in 0..each {
                let id: InstanceId = format!("i-{n}-{i}").parse().unwrap();
                let (hello, ready) = (hello(), Stage::Ready);
                fleet.add(id.clone(), worker(n), &hello.spec, StartKind::Booted, ready, Millis(0));
                fleet.grant(&id, &gateway(0), &hello, Millis(0));
            }
        }
        fleet
    }

    fn looks(heat: &mut Heat, fleet: &Fleet, from: u64, to: u64) -> Vec<Relief> {
        (from..to)
            .flat_map(|s| heat.look(fleet, HOT_AT, Millis(s * 1_000)))
            .collect()
    }

    #[test]
    fn what_runs_on_a_hot_worker_moves_to_the_coolest_one_at_a_time() {
        let fleet = fleet(&[0.95, 0.5, 0.2], 5);
        let mut heat = Heat::default();
        assert!(looks(&mut heat, &fleet, 0, 10).is_empty(), "not hot for long enough");
        let moved = looks(&mut heat, &fleet, 10, 25);
        assert_eq!(moved.len(), 1, "{moved:?}");
        assert_eq!((moved[0].instance.as_str(), &moved[0].to), ("i-0-0", &worker(2)));
        assert_eq!(
            looks(&mut heat, &fleet, 25, 45).len(),
            1,
            "and again once that is told of"
        );
    }

    #[test]
    fn a_worker_that_is_hot_for_a_moment_is_left_alone() {
        let mut fleet = fleet(&[0.95, 0.2], 5);
        let mut heat = Heat::default();
        for s in 0..60 {
            let busy = if s % 8 == 7 { 0.5 } else { 0.95 };
            report(&mut fleet, 0, busy, Millis(s * 1_000));
            assert!(heat.look(&fleet, HOT_AT, Millis(s * 1_000)).is_empty());
        }
    }

    #[test]
    fn nothing_moves_where_all_are_as_busy_or_one_instance_is_the_load() {
        for (loads, each) in [(vec![0.95, 0.9, 0.92], 5), (vec![0.95, 0.1], 1), (vec![0.95], 5)] {
            let fleet = fleet(&loads, each);
            assert!(looks(&mut Heat::default(), &fleet, 0, 100).is_empty(), "{loads:?}");
        }
        let hot = fleet(&[0.95, 0.1], 5);
        for s in 0..100 {
            assert!(
                Heat::default().look(&hot, 0.0, Millis(s * 1_000)).is_empty(),
                "it is off"
            );
        }
    }

    #[test]
    fn a_draining_or_full_worker_takes_nothing_over() {
        let mut fleet = fleet(&[0.95, 0.3, 0.2], 5);
        fleet.drain(&worker(2), true, Millis(0));
        let moved = looks(&mut Heat::default(), &fleet, 0, 15);
        assert_eq!(moved.iter().map(|r| &r.to).collect::<Vec<_>>(), [&worker(1)]);
        let big: InstanceId = "i-big".parse().unwrap();
        let filler = live(spec("big", 1, (1 << 30) - (5 << 20), 1, 5));
        fleet.add(big, worker(1), &filler.spec, StartKind::Booted, Stage::Ready, Millis(0));
        assert!(looks(&mut Heat::default(), &fleet, 0, 15).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        /// Each instance keeps some share of a processor busy. A planned move completes at once, and is reported from
        /// then on.
        #[test]
        fn moves_come_to_an_end_and_nothing_moves_back(
            shares in proptest::collection::vec(proptest::collection::vec(0.0..1.0_f64, 0..8), 2..6),
        ) {
            let mut fleet = Fleet::default();
            let mut heat = Heat::default();
            let mut share_of = HashMap::new();
            for (n, shares) in shares.iter().enumerate() {
                report(&mut fleet, n, 0.0, Millis(0));
                for (i, share) in shares.iter().enumerate() {
                    let id: InstanceId = format!("i-{n}-{i}").parse().unwrap();
                    fleet.add(id.clone(), worker(n), &hello().spec, StartKind::Booted, Stage::Ready, Millis(0));
                    share_of.insert(id, *share);
                }
            }
            let mut moved = HashMap::new();
            let mut last = 0;
            for s in 0..REST.0 / 1_000 {
                let now = Millis(s * 1_000);
                for n in 0..shares.len() {
                    let load: f64 = fleet.instances.on(&worker(n)).map(|(id, _)| share_of[id]).sum();
                    report(&mut fleet, n, load / 4.0, now);
                }
                for relief in heat.look(&fleet, HOT_AT, now) {
                    *moved.entry(relief.instance.clone()).or_insert(0) += 1;
                    last = s;
                    fleet.leave_alone(&relief.instance, now.plus(REST));
                    fleet.instances.get_mut(&relief.instance).unwrap().moving =
                        Some(Move { to: relief.to.clone(), since: None, runs_on: None });
                    fleet.moved(&relief.instance, &rekindle_wire::migration::MigrationKind::Move, &relief.to, now);
                }
            }
            prop_assert!(moved.values().all(|n| *n == 1), "{moved:?}");
            // 20 s between two moves off a worker, and at most 8 instances.
            prop_assert!(last < 200, "still moving after {last} s");
        }
    }
}
