//! Values each unused instance, so that those worth least are evicted first. The policy is greedy-dual over the whole
//! fleet, in milliseconds saved for each byte set aside. It also records its decisions for the metrics.

use rekindle_retention::{Clock, Figures, Rung, Worth};
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

use super::membership::{SHORTAGE, Worker};
use super::retire::{Floor, InstanceDecision, Retiree};
use super::{Fleet, Instance, PARKED_LEAST, Stage};
use crate::clock::Millis;

/// Why an instance was started before any request for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyStartReason {
    /// First instance of its version: a deploy booted it.
    Deploy,
    /// `min_warm` or `min_parked` asks for it.
    Floor,
    /// A call is expected.
    Forecast,
}

/// What the policy records about one instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepAliveState {
    /// Why it was started ahead of any request; `None` once it has been used.
    pub(crate) ahead: Option<EarlyStartReason>,
    /// The last use seen.
    seen: Millis,
    /// Greedy-dual's clock at that use.
    clock: Clock,
    figures: Figures,
    /// Whether a start of its version restores rather than boots.
    restores: bool,
}

impl KeepAliveState {
    pub(crate) fn new(restores: bool, clock: Clock, ahead: Option<EarlyStartReason>) -> Self {
        Self {
            ahead,
            seen: Millis(0),
            clock,
            figures: Figures::default(),
            restores,
        }
    }

    /// Whether [`Fleet::note_worth`] would change anything.
    pub(crate) fn is_news(&self, last_active: Millis, figures: Figures) -> bool {
        last_active > self.seen || figures != self.figures
    }
}

impl Instance {
    fn rung(&self) -> Rung {
        match self.stage {
            Stage::Parked => Rung::Parked,
            _ => Rung::Ready,
        }
    }

    /// Whether its next step down is to be parked rather than to go.
    pub(crate) fn may_be_parked(&self) -> bool {
        self.stage == Stage::Ready && !self.cannot_park && self.park_limit > Millis(0)
    }

    /// Bytes it would be charged while parked.
    fn parked_bytes(&self) -> u64 {
        self.memory_now.max(PARKED_LEAST).min(self.memory)
    }

    /// Milliseconds lost for each byte that its next step down frees.
    pub(crate) fn worth(&self) -> Worth {
        let keeping = &self.keeping;
        let can_park = self.may_be_parked();
        let cost = keeping.figures.saved(self.rung(), can_park, keeping.restores);
        let bytes = if can_park {
            self.memory - self.parked_bytes()
        } else {
            self.set_aside()
        };
        keeping.clock.worth(cost, bytes)
    }

    /// Milliseconds lost for each byte of its real memory if it goes altogether.
    fn worth_in_memory(&self) -> Worth {
        let cost = self.keeping.figures.lost(self.rung(), self.keeping.restores);
        self.keeping.clock.worth(cost, self.memory_now.max(PARKED_LEAST))
    }
}

impl Fleet {
    /// Records a use of an instance since the last look, and how long starts of its function take.
    pub(crate) fn note_worth(&mut self, id: &InstanceId, figures: Figures) {
        let clock = self.clock;
        if let Some(mut instance) = self.instances.get_mut(id) {
            let used = instance.last_active;
            let keeping = &mut instance.keeping;
            keeping.figures = figures;
            if used > keeping.seen {
                keeping.seen = used;
                keeping.clock = clock;
            }
        }
    }

    /// The unused instance that is worth least. Leased ones must be recalled first, and come last.
    pub(crate) fn least_worth<'a>(
        &self,
        of: impl Iterator<Item = (&'a InstanceId, &'a Instance)>,
    ) -> Option<InstanceId> {
        let unused = of.filter(|(_, i)| i.is_unused());
        let least = unused.min_by(|(a_id, a), (b_id, b)| {
            let leased = a.lease.is_some().cmp(&b.lease.is_some());
            let worth = || a.worth().total_cmp(&b.worth());
            let used = || (a.last_active, a_id).cmp(&(b.last_active, b_id));
            leased.then_with(worth).then_with(used)
        });
        least.map(|(id, _)| id.clone())
    }

    /// Makes room for another: an unused instance takes its next step down, and greedy-dual's clock advances. A leased
    /// one is recalled.
    pub(crate) fn step_down(&mut self, id: &InstanceId) -> Option<Retiree> {
        let instance = self.instances.get(id)?;
        let (free, park, worth) = (instance.is_free(), instance.may_be_parked(), instance.worth());
        if !free {
            self.recall(id);
            return None;
        }
        self.clock.gone(worth);
        self.decided.push(match park {
            true => InstanceDecision::ParkedForRoom,
            false => InstanceDecision::EvictedForRoom,
        });
        self.retire(id, park)
    }

    /// For each worker short of memory, evicts the next few unused instances, those worth least first. Of each version,
    /// as many stay as `floor` says.
    pub(crate) fn relieve(&mut self, now: Millis, floor: impl Fn(&FunctionId, VersionNumber) -> Floor) -> Vec<Retiree> {
        let short = |w: &Worker| w.alive && w.guard.is_short();
        let short: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, w)| short(w))
            .map(|(id, _)| id.clone())
            .collect();
        let mut going = Vec::new();
        for worker in short {
            let unneeded = self.unneeded(&worker, now, &floor);
            let Some(worker) = self.workers.get_mut(&worker) else {
                continue;
            };
            let step = worker.guard.step(unneeded.len(), now.into(), &SHORTAGE);
            for (worth, id) in unneeded.into_iter().take(step) {
                self.clock.gone(worth);
                self.decided.push(InstanceDecision::EvictedForPressure);
                going.extend(self.retire(&id, false));
            }
        }
        going
    }

    /// The unused instances of a worker that `floor` does not require, by worth.
    fn unneeded(
        &self,
        worker: &WorkerId,
        now: Millis,
        floor: impl Fn(&FunctionId, VersionNumber) -> Floor,
    ) -> Vec<(Worth, InstanceId)> {
        let may_go = |i: &Instance| i.is_free() && i.retire_after <= now;
        let mut unused: Vec<_> = self.instances.on(worker).filter(|(_, i)| may_go(i)).collect();
        let order = |id: &InstanceId, i: &Instance| (i.last_active, id.clone());
        unused.sort_by(|(a_id, a), (b_id, b)| {
            let used = || order(a_id, a).cmp(&order(b_id, b));
            a.worth_in_memory().total_cmp(&b.worth_in_memory()).then_with(used)
        });
        let mut stay = self.staying_by_version();
        let mut going = Vec::new();
        for (id, instance) in unused {
            let least = floor(&instance.function, instance.version);
            let stay = stay.entry((&instance.function, instance.version)).or_default();
            let (there, least) = match instance.rung() {
                Rung::Ready => (&mut stay.warm, least.warm),
                Rung::Parked => (&mut stay.parked, least.parked),
            };
            let goes = *there > least || self.is_leaving(instance);
            if goes {
                *there = there.saturating_sub(1);
                going.push((instance.worth_in_memory(), id.clone()));
            }
        }
        going
    }

    /// Records a use: an expected call has come.
    pub(crate) fn used(&mut self, id: &InstanceId) {
        if self.instances.get(id).is_none_or(|i| i.keeping.ahead.is_none()) {
            return;
        }
        let was = self.instances.get_mut(id).and_then(|mut i| i.keeping.ahead.take());
        if was == Some(EarlyStartReason::Forecast) {
            self.decided.push(InstanceDecision::PrewarmUsed);
        }
    }

    /// Records a decision.
    pub(crate) fn decided(&mut self, what: InstanceDecision) {
        self.decided.push(what);
    }

    /// Takes the decisions made since the last call.
    pub(crate) fn take_decided(&mut self) -> Vec<InstanceDecision> {
        std::mem::take(&mut self.decided)
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::internal::MemoryPressure;

    use super::*;
    use crate::catalog::ClaimedVersion;
    use crate::catalog::LiveVersion;
    use crate::fixture::{beat, fleet, info, live, ready, spec, worker};

    /// Instances of functions with the given memory in use, all of them unused.
    fn idle(functions: &[(&str, u64)]) -> (Fleet, Vec<LiveVersion>) {
        let mut fleet = fleet(10 << 30);
        let mut all = Vec::new();
        for (name, bytes) in functions {
            let live = live(spec(name, 1, 512 << 20, 1, 100));
            let id = ready(&mut fleet, &format!("i-{name}"), &live, Millis(0));
            fleet.instances.get_mut(&id).unwrap().memory_now = *bytes;
            all.push(live);
        }
        (fleet, all)
    }

    fn press(fleet: &mut Fleet, some: f64, now: Millis) {
        let instances = fleet.instances.iter();
        let listed = instances.map(|(id, i)| {
            let spec = spec(i.function.as_str(), 1, i.memory, 1, 100);
            let memory_bytes = i.memory_now;
            rekindle_wire::api::InstanceInfo {
                memory_bytes,
                ..info(id, &spec, 0, 0, now.0)
            }
        });
        let mut beat = beat(0, 1, 10 << 30, listed.collect());
        beat.pressure = MemoryPressure {
            some: Some(some),
            full: Some(0.0),
            available: Some(10.0),
        };
        fleet.heartbeat(&beat, now, |_, _| ClaimedVersion::Unknown);
    }

    fn no_floor(_: &FunctionId, _: VersionNumber) -> Floor {
        Floor::default()
    }

    fn names(retirees: &[Retiree]) -> Vec<&str> {
        retirees.iter().map(|r| r.instance.as_str()).collect()
    }

    #[test]
    fn a_worker_short_of_memory_lets_the_least_worth_go_one_step_at_a_time_until_it_is_calm() {
        let (mut fleet, _) = idle(&[("small", 10 << 20), ("large", 200 << 20), ("middle", 50 << 20)]);
        assert!(fleet.relieve(Millis(1), no_floor).is_empty());
        press(&mut fleet, 50.0, Millis(10));
        assert_eq!(names(&fleet.relieve(Millis(10), no_floor)), ["i-large"]);
        assert!(
            fleet.relieve(Millis(1_000), no_floor).is_empty(),
            "its effect is waited for"
        );
        assert_eq!(names(&fleet.relieve(Millis(2_010), no_floor)), ["i-middle"]);
        press(&mut fleet, 7.0, Millis(4_000));
        assert_eq!(
            names(&fleet.relieve(Millis(4_100), no_floor)),
            ["i-small"],
            "not calm yet"
        );
        let (mut fleet, _) = idle(&[("small", 10 << 20)]);
        press(&mut fleet, 50.0, Millis(10));
        press(&mut fleet, 1.0, Millis(20));
        assert!(fleet.relieve(Millis(30), no_floor).is_empty());
    }

    #[test]
    fn neither_what_is_in_use_nor_what_shall_stay_goes_for_memory() {
        let (mut fleet, all) = idle(&[("held", 300 << 20), ("used", 200 << 20), ("free", 1 << 20)]);
        fleet.grant(&"i-used".parse().unwrap(), &"g-1".parse().unwrap(), &all[1], Millis(1));
        press(&mut fleet, 50.0, Millis(10));
        let floor = |function: &FunctionId, _| Floor {
            warm: usize::from(function.as_str() == "held"),
            parked: 0,
        };
        assert_eq!(names(&fleet.relieve(Millis(10), floor)), ["i-free"]);
        assert!(fleet.relieve(Millis(9_000), floor).is_empty());
        assert_eq!(fleet.take_decided(), [InstanceDecision::EvictedForPressure]);
    }

    #[test]
    fn for_room_a_ready_instance_is_parked_before_a_parked_one_goes() {
        let (mut fleet, _) = idle(&[("ready", 40 << 20), ("parked", 40 << 20)]);
        let (a, b): (InstanceId, InstanceId) = ("i-ready".parse().unwrap(), "i-parked".parse().unwrap());
        for id in [&a, &b] {
            fleet.instances.get_mut(id).unwrap().park_limit = Millis(1_000);
        }
        fleet.instances.get_mut(&b).unwrap().stage = Stage::Parked;
        assert_eq!(fleet.least_worth(fleet.instances.on(&worker(0))).as_ref(), Some(&a));
        assert!(fleet.step_down(&a).unwrap().park);
        fleet.parked(&a);
        let next = fleet.least_worth(fleet.instances.on(&worker(0))).unwrap();
        assert!(!fleet.step_down(&next).unwrap().park);
        assert_eq!(
            fleet.take_decided(),
            [InstanceDecision::ParkedForRoom, InstanceDecision::EvictedForRoom]
        );
        // The clock has advanced: what is used now outlives what was used before.
        fleet.note_worth(&a, Figures::default());
        assert!(fleet.clock != Clock::default());
    }
}
