//! Where an invocation goes: the decision alone, as a function of what the scheduler knows. No I/O; what it decides is carried out by
//! [`crate::placing`].
//!
//! What is there is compared by how soon the function is expected to have the invocation ([`cost`]): an instance with free slots, the most
//! recently used first so that the others may idle out; one that stands parked on a worker with the room for it to go on; a new instance, on the worker
//! that [`start`] finds. So what is near is taken until it costs more than a restore elsewhere. Else waiting. Never more than
//! `max_instances` of a version, never more memory set aside on a worker than it has. What is looked at is bounded, or the function's own.

pub(crate) mod cost;
pub(crate) mod start;

use std::collections::HashSet;

use rekindle_wire::api::StartKind;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::{InstanceId, WorkerId};

use crate::fleet::instances::OfVersion;
use crate::fleet::{Fleet, Instance, LiveVersion, Millis, Stage};

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
    fn avoids(&self, fleet: &Fleet, worker: &WorkerId, now: Millis) -> bool {
        let is_named = |worker| {
            let worker = fleet.workers.get(worker);
            worker.is_some_and(|w| self.avoid.contains(&w.address))
        };
        !self.avoid.is_empty() && now < self.avoid_until && is_named(worker) && self.may_go_elsewhere(fleet)
    }

    /// Whether there is a worker that is not passed over.
    pub(crate) fn may_go_elsewhere(&self, fleet: &Fleet) -> bool {
        let all = fleet.workers.values();
        all.filter(|w| w.takes_new()).any(|w| !self.avoid.contains(&w.address))
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

impl Decision {
    /// Whether nothing was found that could go to make room.
    fn frees_nothing(&self) -> bool {
        !matches!(self, Self::Wait { free_up: Some(_), .. })
    }
}

/// How many instances are compared by what they cost; of those that are as good, the first are.
const COMPARED: usize = 8;

/// Decides where an invocation of `live` goes.
pub(crate) fn place(fleet: &Fleet, live: &LiveVersion, ask: &Ask, now: Millis) -> Decision {
    let spec = &live.spec;
    let there = fleet.instances.of_version(&spec.function, spec.version);
    let best = there
        .filter(|_| ask.force.is_none())
        .and_then(|v| warmest(fleet, v, ask, now));
    match best {
        // No start is that soon.
        Some((id, cost)) if cost <= cost::FROM_TEMPLATE => return Decision::Use(id),
        Some(_) => {}
        None if ask.force.is_none() && fleet.is_worth_waiting_for(live, now) => {
            return Decision::Wait {
                shortage: Shortage::Instances,
                free_up: None,
            };
        }
        None => {}
    }
    let decision = begin(fleet, live, there, ask, now);
    match (best, decision) {
        (Some((_, cost)), Begin::At(start, kind)) if start.cost < cost => Decision::Start {
            worker: start.worker,
            kind,
        },
        (Some((id, _)), _) => Decision::Use(id),
        (None, Begin::At(start, kind)) => Decision::Start {
            worker: start.worker,
            kind,
        },
        (None, Begin::Not(decision)) => decision,
    }
}

/// Whether a new instance can begin.
enum Begin {
    At(start::Best, StartKind),
    Not(Decision),
}

fn begin(fleet: &Fleet, live: &LiveVersion, there: Option<&OfVersion>, ask: &Ask, now: Millis) -> Begin {
    if let Some(all) = there.filter(|v| v.ids.len() >= live.spec.manifest.max_instances as usize) {
        // A gateway that asks for another instance knows better than a heartbeat that those it holds are in use.
        let not_its_own = |(_, i): &(&InstanceId, &Instance)| {
            ask.force.is_some() || i.lease.as_ref().is_none_or(|l| l.gateway != ask.gateway)
        };
        // Within a version, what was used longest ago is worth least of what stands alike.
        let unused = fleet.instances.named(all.unused.iter().map(|(_, id)| id));
        return Begin::Not(Decision::Wait {
            shortage: Shortage::Instances,
            free_up: fleet
                .least_worth(unused.filter(not_its_own).take(COMPARED))
                .or_else(|| longest_held(ask, all)),
        });
    }
    let kind = ask.force.unwrap_or_else(|| live.natural_start());
    let start = |kind| start::cheapest(fleet, live, kind, now, |w| !ask.avoids(fleet, w, now));
    match start(kind) {
        Ok(best) => Begin::At(best, kind),
        // There may be room on workers that lack instructions which its snapshot's processes may use: it boots there.
        Err(short) if ask.force.is_none() && kind == StartKind::Restored => match start(StartKind::Booted) {
            Ok(best) => Begin::At(best, StartKind::Booted),
            // What is to go for it may be on such a worker.
            Err(booted) => Begin::Not(if short.frees_nothing() { booted } else { short }),
        },
        Err(short) => Begin::Not(short),
    }
}

/// The instance another gateway has held for longest. It is busy, so recalling it makes the gateways take turns.
fn longest_held(ask: &Ask, all: &OfVersion) -> Option<InstanceId> {
    let others = all.held.iter().filter(|(gateway, _)| **gateway != ask.gateway);
    let longest = others.filter_map(|(_, leases)| leases.first()).min();
    longest.map(|(_, id)| id.clone())
}

/// The instance with free slots that is expected to have the invocation soonest, and how soon, milliseconds. Where nothing is to be waited for, that
/// is the one used last; one that is parked comes after all that are ready, and one that still starts after those.
fn warmest(fleet: &Fleet, there: &OfVersion, ask: &Ask, now: Millis) -> Option<(InstanceId, f64)> {
    let sites = fleet.instances.sites();
    let site_of = |i: &Instance| {
        let site = sites.get(&i.worker)?;
        let may_go_on = match i.stage {
            Stage::Ready | Stage::Starting => true,
            Stage::Parked => fleet.may_go_on(i),
            Stage::Preparing | Stage::Capturing | Stage::Moving | Stage::Stopping => false,
        };
        let takes_new = site.facts.as_ref().is_some_and(|f| f.takes_new);
        let is_free = !i.draining && i.in_flight < i.slots;
        (takes_new && may_go_on && is_free && !ask.avoids(fleet, &i.worker, now)).then_some(site)
    };
    let lost = lost_leases(fleet, there, ask, now);
    let ids = there.open.iter().rev().map(|(_, id)| id).chain(lost);
    let takeable = fleet
        .instances
        .named(ids)
        .filter_map(|(id, i)| Some((id, i, site_of(i)?)));
    let mut best: Option<(&InstanceId, f64)> = None;
    for (n, (id, i, site)) in takeable.take(COMPARED).enumerate() {
        let stage = match i.stage {
            Stage::Parked => cost::PARKED,
            Stage::Starting => cost::FROM_TEMPLATE,
            _ => 0.0,
        };
        let later = if n == 0 { 0.0 } else { cost::LATEST };
        let cost = stage + later + site.wait(cost::INVOCATION);
        if best.is_none_or(|(_, least)| cost < least) {
            best = Some((id, cost));
        }
        // None of the others can be better.
        if cost <= cost::LATEST {
            break;
        }
    }
    best.map(|(id, cost)| (id.clone(), cost))
}

/// Instances whose lease may be granted anew: it has run out, or the answer that granted it was lost.
fn lost_leases<'a>(fleet: &Fleet, there: &'a OfVersion, ask: &Ask, now: Millis) -> Vec<&'a InstanceId> {
    let ended = there.lease_ends.iter().take_while(|(ends, _)| *ends <= now);
    let mut lost: Vec<_> = ended.map(|(_, id)| id).collect();
    let of_gateway = there.held.get(&ask.gateway);
    // One that knows of as many as it holds has lost none. If some of those it names are not its own any more it may have, and the lease runs out.
    if let Some(leases) = of_gateway.filter(|leases| leases.len() > ask.held.len()) {
        let known: HashSet<_> = ask.held.iter().collect();
        let old = leases.iter().take_while(|(at, _)| now.since(*at) > LOST_ANSWER);
        lost.extend(old.map(|(_, id)| id).filter(|id| !known.contains(id)));
    }
    lost.sort_by_key(|id| std::cmp::Reverse((fleet.instances.get(id).map(|i| i.last_active), *id)));
    lost.dedup();
    lost
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
