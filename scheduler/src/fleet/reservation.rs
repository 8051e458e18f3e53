//! Room for a function that waits while others hold it all. A worker is reserved for it, and leased instances there
//! make way.
//!
//! An instance that serves requests is never stopped for another function. It takes no new ones, finishes, and goes.
//! The candidates belong to functions that would then still hold at least as much as the waiting one. Among them the
//! instance that has been leased longest goes. A function that holds nothing may also take another's last instance,
//! once the other has had it for a second. So with less room than functions they take turns.

use std::collections::HashMap;

use rekindle_wire::{FunctionId, InstanceId, WorkerId};

use super::retire::InstanceDecision;
use super::{Draining, Fleet, Instance, Worker};
use crate::catalog::LiveVersion;
use crate::clock::Millis;

/// How long a function may use its last instance before another that has none may take its room.
const TURN: Millis = Millis(1_000);

/// A worker reserved for one function.
#[derive(Debug, Clone)]
struct ReservedFor {
    function: FunctionId,
    worker: WorkerId,
}

/// The reservation of a worker: for one function at a time.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    kept: Option<ReservedFor>,
}

impl Fleet {
    /// Memory held by each function's instances, without those that are leaving, bytes.
    pub(crate) fn held(&self) -> HashMap<&FunctionId, u64> {
        let mut held: HashMap<&FunctionId, u64> = HashMap::new();
        for instance in self.instances.values().filter(|i| i.draining.is_none()) {
            *held.entry(&instance.function).or_default() += instance.set_aside();
        }
        held
    }

    /// Whether the worker is reserved for another function.
    pub(crate) fn is_kept_from(&self, function: &FunctionId, worker: &WorkerId) -> bool {
        let kept = self.claims.kept.as_ref();
        kept.is_some_and(|kept| kept.function != *function && kept.worker == *worker)
    }

    /// Ends the function's claim: it has what it waited for, or does not wait any more.
    pub(crate) fn end_claim(&mut self, function: &FunctionId) {
        self.claims.kept.take_if(|kept| kept.function == *function);
    }

    /// The function that holds the claim.
    pub(crate) fn claimant(&self) -> Option<&FunctionId> {
        self.claims.kept.as_ref().map(|kept| &kept.function)
    }

    /// Claims room for a function that waits for memory while nothing free can make way. A worker is reserved for it
    /// from now on, unless one is reserved for another that holds no more. Instances in use there take nothing new, as
    /// far as its share allows. Returns whether any instance was told so.
    pub(crate) fn claim(&mut self, live: &LiveVersion, now: Millis) -> bool {
        let function = &live.spec.function;
        let comes_first = match &self.claims.kept {
            None => true,
            Some(kept) if kept.function == *function => false,
            Some(kept) => {
                let held = self.held();
                let of = |function: &FunctionId| held.get(function).copied().unwrap_or(0);
                of(function) < of(&kept.function)
            }
        };
        if comes_first {
            self.claims.kept = self.nearest(live);
        }
        let Some(kept) = self.claims.kept.as_ref().filter(|k| k.function == *function) else {
            return false;
        };
        let worker = kept.worker.clone();
        let capacity = self.workers.get(&worker).map_or(0, |w| w.capacity);
        let here = |i: &&Instance| i.worker == worker || i.moves_to(&worker);
        // What is free can go at once, and what is leaving will go. A leased instance may be in use, whatever its
        // worker reported.
        let stays = |i: &&Instance| !i.is_free() && i.draining.is_none();
        let in_use: u64 = self
            .instances
            .values()
            .filter(here)
            .filter(stays)
            .map(|i| i.memory)
            .sum();
        if in_use.saturating_add(live.memory()) <= capacity {
            return false;
        }
        let Some(id) = self.may_yield(live, &worker, now) else {
            return false;
        };
        if let Some(mut instance) = self.instances.get_mut(&id) {
            instance.draining = Some(Draining::Surplus);
        }
        self.decided(InstanceDecision::Yielded);
        self.recall(&id);
        true
    }

    /// The worker that has to give up least until there is room.
    fn nearest(&self, live: &LiveVersion) -> Option<ReservedFor> {
        let mut in_use: HashMap<&WorkerId, u64> = HashMap::new();
        for instance in self.instances.values().filter(|i| !i.is_unused()) {
            *in_use.entry(&instance.worker).or_default() += instance.memory;
        }
        let fits = self
            .workers
            .iter()
            .filter(|(_, w)| w.takes_new() && w.capacity >= live.memory());
        let spare = |id: &WorkerId, w: &Worker| w.capacity.saturating_sub(in_use.get(id).copied().unwrap_or(0));
        let (id, _) = fits.max_by_key(|(id, w)| spare(id, w))?;
        Some(ReservedFor {
            function: live.spec.function.clone(),
            worker: id.clone(),
        })
    }

    fn may_yield(&self, live: &LiveVersion, worker: &WorkerId, now: Millis) -> Option<InstanceId> {
        let held = self.held();
        let of = |function: &FunctionId| held.get(function).copied().unwrap_or(0);
        let own = of(&live.spec.function);
        let may = |i: &Instance| {
            let granted = i.lease.as_ref().map(|l| l.granted_at);
            let keeps_its_share = of(&i.function).saturating_sub(i.memory) >= own + live.memory();
            let has_had_its_turn = own == 0 && granted.is_some_and(|at| now.since(at) >= TURN);
            i.worker == *worker
                && i.function != live.spec.function
                && i.draining.is_none()
                && i.moving.is_none()
                && granted.is_some()
                && (keeps_its_share || has_had_its_turn)
        };
        let candidates = self.instances.iter().filter(|(_, i)| may(i));
        let granted = |i: &Instance| i.lease.as_ref().map(|l| l.granted_at);
        // An instance whose lease is already recalled is, as far as is known, not in use.
        let recalled = |i: &Instance| i.lease.as_ref().is_some_and(|l| l.recalled);
        let longest = candidates.min_by_key(|(id, i)| (!recalled(i), u64::MAX - of(&i.function), granted(i), *id));
        longest.map(|(id, _)| id.clone())
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::ids::GatewayId;

    use super::*;
    use crate::fixture::{fleet, live, ready, spec};

    /// A full worker with the given number of instances of each function, all leased and busy since `since`.
    fn full(functions: &[(&str, usize)], since: Millis) -> Fleet {
        let all: usize = functions.iter().map(|f| f.1).sum();
        let mut fleet = fleet(10 * all as u64);
        let gateway: GatewayId = "g-1".parse().unwrap();
        for (name, count) in functions {
            let live = live(spec(name, 1, 10, 1, 50));
            for n in 0..*count {
                let id = ready(&mut fleet, &format!("i-{name}-{n}"), &live, since);
                fleet.grant(&id, &gateway, &live, since);
                fleet.instances.get_mut(&id).unwrap().in_flight = 1;
            }
        }
        fleet
    }

    fn yielded(fleet: &Fleet) -> Vec<&str> {
        let draining = fleet.instances.values().filter(|i| i.draining.is_some());
        draining.map(|i| i.function.as_str()).collect()
    }

    #[test]
    fn who_holds_most_yields_one_instance_at_a_time_until_the_share_is_fair() {
        let mut fleet = full(&[("burst", 4), ("small", 2)], Millis(0));
        let other = live(spec("other", 1, 10, 1, 50));
        assert!(fleet.claim(&other, Millis(10)));
        assert_eq!(yielded(&fleet), ["burst"]);
        assert!(!fleet.claim(&other, Millis(11)), "its room is on its way");
        let worker = crate::fixture::worker(0);
        let (burst, own) = ("burst".parse().unwrap(), &other.spec.function);
        assert!(fleet.is_kept_from(&burst, &worker) && !fleet.is_kept_from(own, &worker));
        let own = own.clone();
        fleet.end_claim(&own);
        assert!(!fleet.is_kept_from(&burst, &worker));
    }

    #[test]
    fn what_is_leased_counts_as_used_though_its_worker_last_said_otherwise() {
        let mut fleet = full(&[("burst", 4)], Millis(0));
        for id in fleet.instances.ids_of(&"burst".parse().unwrap()) {
            fleet.instances.get_mut(&id).unwrap().in_flight = 0;
        }
        let recalled: InstanceId = "i-burst-2".parse().unwrap();
        fleet.recall(&recalled);
        let other = live(spec("other", 1, 10, 1, 50));
        assert!(fleet.claim(&other, Millis(10)));
        assert!(
            fleet.instances[&recalled].draining.is_some(),
            "the one that was to go anyhow"
        );
        assert!(!fleet.claim(&other, Millis(11)));
    }

    #[test]
    fn a_function_that_holds_much_and_waits_for_more_does_not_claim_before_one_that_holds_nothing() {
        let mut fleet = full(&[("burst", 4)], Millis(0));
        let burst = live(spec("burst", 1, 10, 1, 50));
        assert!(!fleet.claim(&burst, Millis(5)), "nobody yields to it");
        let other = live(spec("other", 1, 10, 1, 50));
        assert!(fleet.claim(&other, Millis(10)));
        assert!(!fleet.claim(&burst, Millis(20)));
        assert_eq!(fleet.claimant(), Some(&other.spec.function));
    }

    #[test]
    fn nobody_falls_below_the_share_of_who_asks_but_with_less_room_than_functions_they_take_turns() {
        let mut fleet = full(&[("one", 1)], Millis(0));
        let other = live(spec("other", 1, 10, 1, 50));
        assert!(!fleet.claim(&other, Millis(999)), "it has just begun");
        assert!(fleet.claim(&other, Millis(1_000)));
        let mut fleet = full(&[("one", 2), ("other", 2)], Millis(0));
        assert!(!fleet.claim(&other, Millis(9_000)), "both hold as much");
    }
}
