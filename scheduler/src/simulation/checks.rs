//! What must hold of the scheduler's decisions at any time.

use std::collections::HashMap;

use rekindle_wire::internal::Placement;

use super::gateways::Slot;
use super::hosts::Link;
use super::world::{SECOND, TICK, World};
use crate::clock::Millis;
use crate::fleet::membership::GONE;

impl World {
    pub(super) fn moment(&self) -> String {
        format!("seed {}, at {} ms", self.setup.seed, self.now.0)
    }

    /// Checks a granted lease: its worker accepts new instances, or the instance is about to leave it. It has the room.
    /// No other gateway holds it.
    pub(super) fn check_granted(&self, placement: &Placement, host: usize, to: usize) {
        let id = &placement.instance;
        let Some(instance) = self.fleet.instances.get(id) else {
            return;
        };
        let worker = &self.fleet.workers[&instance.worker];
        let may_serve = worker.takes_new() || self.fleet.awaits_its_move(instance);
        assert!(may_serve, "{}: {id} is on {}", self.moment(), instance.worker);
        let reserved = self.fleet.reserved(&instance.worker);
        assert!(
            reserved <= worker.capacity,
            "{}: {} is over",
            self.moment(),
            instance.worker
        );
        let function = self.function_of[&instance.function];
        for (n, gateway) in self.gateways.iter().enumerate().filter(|(n, _)| *n != to) {
            // A gateway with a slot where the instance was before its move asks there in vain.
            let held = |s: &Slot| s.instance == *id && s.host == host && s.ends > self.now;
            let held = gateway.slots_of(function).any(held);
            assert!(!held, "{}: {id} is gateway {n}'s", self.moment());
        }
    }

    pub(super) fn check(&mut self) {
        self.report.checks += 1;
        for host in &self.hosts {
            let away = self.now.since(host.link_since);
            if host.link != Link::Up && away > GONE.plus(Millis(SECOND + 2 * TICK)) {
                let there = self.fleet.instances.on(&host.id).count();
                assert_eq!(there, 0, "{}: on {}, which is gone", self.moment(), host.id);
            }
        }
        if !self.now.0.is_multiple_of(10 * SECOND) {
            return;
        }
        for (id, worker) in &self.fleet.workers {
            assert!(
                self.fleet.reserved(id) <= worker.capacity,
                "{}: {id} is over",
                self.moment()
            );
        }
        let mut holders = HashMap::new();
        for (n, gateway) in self.gateways.iter().enumerate() {
            for slot in gateway.leases().filter(|s| s.ends > self.now) {
                let other = holders.insert((slot.instance.clone(), slot.host), n);
                assert_eq!(other, None, "{}: {} is leased twice", self.moment(), slot.instance);
            }
        }
        #[cfg(test)]
        self.fleet.instances.check();
    }
}
