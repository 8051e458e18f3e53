//! The gateways of a simulation: which leases they hold, and how full they believe the leased instances are.

use std::collections::HashMap;

use rekindle_wire::InstanceId;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{LeaseReport, Placement, ReturnedLease};

use crate::clock::Millis;

/// A lease on an instance.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) instance: InstanceId,
    pub(super) host: usize,
    slots: u32,
    in_use: u32,
    lease: Millis,
    pub(super) ends: Millis,
    last_used: Millis,
    /// The scheduler wants it back.
    giving_back: bool,
    served: bool,
}

#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) id: GatewayId,
    held: HashMap<usize, Vec<Slot>>,
}

impl Gateway {
    pub(super) fn new(id: GatewayId) -> Self {
        Self {
            id,
            held: HashMap::new(),
        }
    }

    /// The instances of a function that it holds.
    pub(super) fn held(&self, function: usize) -> Vec<InstanceId> {
        let slots = self.held.get(&function).into_iter().flatten();
        slots.map(|s| s.instance.clone()).collect()
    }

    /// Takes a free slot, if there is one.
    pub(super) fn enter(&mut self, function: usize, now: Millis) -> Option<(InstanceId, usize)> {
        let slots = self.held.get_mut(&function)?;
        let free = |s: &&mut Slot| s.in_use < s.slots && !s.giving_back && s.ends > now;
        let slot = slots.iter_mut().find(free)?;
        slot.in_use += 1;
        slot.last_used = now;
        Some((slot.instance.clone(), slot.host))
    }

    /// Records a granted lease, with one of its slots taken.
    pub(super) fn granted(&mut self, function: usize, host: usize, placement: &Placement, now: Millis) {
        let slots = self.held.entry(function).or_default();
        slots.retain(|s| s.instance != placement.instance);
        let lease = Millis(placement.lease_ms);
        slots.push(Slot {
            instance: placement.instance.clone(),
            host,
            slots: placement.slots,
            in_use: 1,
            lease,
            ends: now.plus(lease),
            last_used: now,
            giving_back: false,
            served: false,
        });
    }

    /// Records the end of an invocation. Returns whether its lease is still held.
    pub(super) fn left(&mut self, function: usize, instance: &InstanceId, now: Millis) -> bool {
        let slots = self.held.get_mut(&function).into_iter().flatten();
        let mut slots = slots.filter(|s| s.instance == *instance);
        let Some(slot) = slots.next() else { return false };
        slot.in_use = slot.in_use.saturating_sub(1);
        slot.last_used = now;
        slot.served = true;
        true
    }

    /// Drops a slot whose instance is gone or out of reach.
    pub(super) fn drop_slot(&mut self, function: usize, instance: &InstanceId) {
        if let Some(slots) = self.held.get_mut(&function) {
            slots.retain(|s| s.instance != *instance);
            if slots.is_empty() {
                self.held.remove(&function);
            }
        }
    }

    /// Marks leases that the scheduler wants back.
    pub(super) fn give_back(&mut self, ids: &[InstanceId]) {
        if ids.is_empty() {
            return;
        }
        for slot in self.held.values_mut().flatten() {
            slot.giving_back |= ids.contains(&slot.instance);
        }
    }

    /// The gateway's report. It lists the leases it keeps, and returns those that it has not used for a lease's length
    /// or must give back. It no longer holds what it returns.
    pub(super) fn report(&mut self, now: Millis) -> LeaseReport {
        let (mut held, mut returned) = (Vec::new(), Vec::new());
        self.held.retain(|_, slots| {
            slots.retain(|slot| {
                let idle = now.since(slot.last_used);
                let goes = slot.in_use == 0 && (slot.giving_back || idle >= slot.lease);
                // A lease that ran out unrenewed has no holder.
                if slot.ends <= now && slot.in_use == 0 {
                    return false;
                }
                if goes {
                    returned.push(ReturnedLease {
                        instance: slot.instance.clone(),
                        served: slot.served,
                        idle_ms: idle.0,
                        stuck: false,
                        busy: 0,
                    });
                } else if slot.ends > now {
                    held.push(slot.instance.clone());
                }
                !goes
            });
            !slots.is_empty()
        });
        LeaseReport {
            gateway: self.id.clone(),
            held,
            numbers: Vec::new(),
            returned,
        }
    }

    /// Applies the scheduler's answer: every reported lease is renewed except these.
    pub(super) fn renewed(&mut self, give_back: &[InstanceId], now: Millis) {
        self.give_back(give_back);
        for slot in self.held.values_mut().flatten() {
            if !slot.giving_back && slot.ends > now {
                slot.ends = now.plus(slot.lease);
            }
        }
    }

    pub(super) fn slots_of(&self, function: usize) -> impl Iterator<Item = &Slot> {
        self.held.get(&function).into_iter().flatten()
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Slot> {
        self.held.values().flatten()
    }
}
