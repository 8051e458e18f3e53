//! Where an invocation goes: the decision alone, as a function of what the scheduler knows. No I/O; what it decides is carried out by
//! [`crate::placing`].
//!
//! Order of preference: an instance with free slots, the most recently used first so that the others may idle out; then one that stands
//! parked on a worker with the room for it to go on; then a new
//! instance on the worker that already runs the version, else on the one with the most free memory; else waiting. Never more than
//! `max_instances` of a version, never more memory set aside on a worker than it has.

use std::collections::HashSet;

use rekindle_wire::api::StartKind;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::{InstanceId, WorkerId};

use crate::fleet::{Fleet, Instance, LiveVersion, Millis, Stage, Worker};

/// A lease its gateway does not list is granted again once it is this old: the answer that granted it must have been lost. Before
/// that the answer may still be on its way.
pub(crate) const LOST_ANSWER: Millis = Millis(3_000);

/// How long a worker that a gateway could not reach is passed over for it.
pub(crate) const AVOID_FOR: Millis = Millis(3_000);

/// What a gateway asks for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) gateway: GatewayId,
    pub(crate) held: Vec<InstanceId>,
    /// Start a new instance this way, whatever is there.
    pub(crate) force: Option<StartKind>,
    /// Addresses of workers it could not reach, and until when that counts.
    pub(crate) avoid: Vec<String>,
    pub(crate) avoid_until: Millis,
}

impl Ask {
    /// Passes a worker over for a while, as it could not be asked or refused. Answers how many are passed over.
    pub(crate) fn avoid_for(&mut self, address: &str, now: Millis) -> usize {
        self.avoid.push(address.to_owned());
        self.avoid_until = now.plus(AVOID_FOR);
        self.avoid.len()
    }

    /// Whether an instance on `worker` is of no use to it. Where there is no other worker, this one may be reachable again.
    fn avoids(&self, fleet: &Fleet, worker: &Worker, now: Millis) -> bool {
        now < self.avoid_until
            && self.avoid.contains(&worker.address)
            && fleet
                .workers
                .values()
                .any(|w| w.takes_new() && !self.avoid.contains(&w.address))
    }
}

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The function is at its maximum of instances.
    Instances,
    /// No worker has that much memory free.
    Memory,
    /// No worker is heard of.
    Workers,
}

/// What to do with an ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Lease this instance.
    Use(InstanceId),
    /// Start an instance there.
    Start { worker: WorkerId, kind: StartKind },
    /// Wait until something changes. `free_up` is the unused instance that is worth least.
    Wait {
        shortage: Shortage,
        free_up: Option<InstanceId>,
    },
    /// The function's memory limit is more than any worker has.
    TooBig { largest: u64 },
}

/// Decides where an invocation of `live` goes.
pub(crate) fn place(fleet: &Fleet, live: &LiveVersion, ask: &Ask, now: Millis) -> Decision {
    if ask.force.is_none()
        && let Some(id) = warmest(fleet, live, ask, now)
    {
        return Decision::Use(id);
    }
    let spec = &live.spec;
    if ask.force.is_none() && fleet.is_worth_waiting_for(live, now) {
        return Decision::Wait {
            shortage: Shortage::Instances,
            free_up: None,
        };
    }
    if fleet.count(&spec.function, spec.version) >= spec.manifest.max_instances as usize {
        let of_version = |i: &Instance| i.function == spec.function && i.version == spec.version;
        // A gateway that asks for another instance knows better than a heartbeat that those it holds are in use.
        let not_its_own = |i: &Instance| {
            of_version(i) && (ask.force.is_some() || i.lease.as_ref().is_none_or(|l| l.gateway != ask.gateway))
        };
        return Decision::Wait {
            shortage: Shortage::Instances,
            free_up: fleet
                .least_worth(not_its_own)
                .or_else(|| longest_held(fleet, ask, of_version)),
        };
    }
    match roomiest(fleet, live, |w| !ask.avoids(fleet, w, now)) {
        Ok(worker) => Decision::Start {
            worker,
            kind: ask.force.unwrap_or_else(|| live.natural_start()),
        },
        Err(short) => short,
    }
}

/// The instance with free slots that was used last; one that is parked comes after all that are ready, and one that still starts after
/// those.
fn warmest(fleet: &Fleet, live: &LiveVersion, ask: &Ask, now: Millis) -> Option<InstanceId> {
    let takeable = |(id, i): &(&InstanceId, &Instance)| {
        i.function == live.spec.function
            && i.version == live.spec.version
            && !i.draining
            && match i.stage {
                Stage::Ready | Stage::Starting => true,
                Stage::Parked => fleet.may_go_on(i),
                Stage::Preparing | Stage::Capturing | Stage::Moving | Stage::Stopping => false,
            }
            && i.in_flight < i.slots
            && fleet
                .workers
                .get(&i.worker)
                .is_some_and(|w| w.takes_new() && !ask.avoids(fleet, w, now))
            && may_lease(id, i, ask, now)
    };
    fleet
        .instances
        .iter()
        .filter(takeable)
        .max_by_key(|(id, i)| (i.stage == Stage::Ready, i.stage == Stage::Parked, i.last_active, *id))
        .map(|(id, _)| id.clone())
}

fn may_lease(id: &InstanceId, instance: &Instance, ask: &Ask, now: Millis) -> bool {
    match &instance.lease {
        None => true,
        Some(lease) if lease.expires_at <= now => true,
        Some(lease) => {
            lease.gateway == ask.gateway && !ask.held.contains(id) && now.since(lease.granted_at) > LOST_ANSWER
        }
    }
}

/// The worker for a new instance, of those that are `usable`.
pub(crate) fn roomiest(
    fleet: &Fleet,
    live: &LiveVersion,
    usable: impl Fn(&Worker) -> bool,
) -> Result<WorkerId, Decision> {
    let need = live.memory();
    let taken = fleet.taken();
    let taken = |id| taken.get(id).copied().unwrap_or_default();
    let alive: Vec<_> = fleet
        .workers
        .iter()
        .filter(|(_, w)| w.takes_new() && usable(w))
        .map(|(id, w)| (id, w, taken(id).room(w)))
        .collect();
    let Some(largest) = alive.iter().map(|(_, w, _)| w.capacity).max() else {
        return Err(Decision::Wait {
            shortage: Shortage::Workers,
            free_up: None,
        });
    };
    if largest < need {
        return Err(Decision::TooBig { largest });
    }
    // Its room is another's next.
    let is_kept = |worker: &Worker| fleet.is_kept_from(&live.spec.function, worker);
    let running: HashSet<&WorkerId> = fleet
        .instances
        .values()
        .filter(|i| i.function == live.spec.function && i.version == live.spec.version)
        .map(|i| &i.worker)
        .collect();
    alive
        .iter()
        .filter(|(_, w, free)| *free >= need && !is_kept(w))
        .max_by_key(|(id, _, free)| (running.contains(id), *free))
        .map(|(id, _, _)| (*id).clone())
        .ok_or_else(|| Decision::Wait {
            shortage: Shortage::Memory,
            free_up: alive
                .iter()
                // Whether it fits once all the worker's unused instances are gone.
                .filter(|(id, w, _)| taken(id).in_use.saturating_add(need) <= w.capacity && !is_kept(w))
                .find_map(|(id, _, _)| fleet.least_worth(|i| i.worker == **id)),
        })
}

/// The instance another gateway has held for longest. It is busy, so recalling it makes the gateways take turns.
fn longest_held(fleet: &Fleet, ask: &Ask, which: impl Fn(&Instance) -> bool) -> Option<InstanceId> {
    fleet
        .instances
        .iter()
        .filter(|(_, i)| which(i))
        .filter_map(|(id, i)| i.lease.as_ref().map(|l| (id, l)))
        .filter(|(_, lease)| lease.gateway != ask.gateway)
        .min_by_key(|(id, lease)| (lease.granted_at, *id))
        .map(|(id, _)| id.clone())
}

#[cfg(test)]
mod tests;
