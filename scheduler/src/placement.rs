//! Decides where an invocation goes, from what the scheduler knows. There is no I/O: [`crate::placing`] carries the
//! decisions out.
//!
//! The options are compared by how soon the function is expected to have the invocation ([`cost`]):
//!
//! - an instance with free slots, the most recently used first, so that the others can become idle;
//! - a parked instance on a worker that has the room for it to continue;
//! - a new instance, on the worker that [`start`] finds.
//!
//! So what is near is used until it costs more than a restore elsewhere. Otherwise the invocation waits, as it does for
//! an instance that moves to another worker ([`crate::fleet::incoming`]). A version
//! never has more than `max_instances`, and a namespace no more than its quota. No more memory is set aside on a worker
//! than it has. A decision examines a bounded number of candidates, or only the function's own.

pub(crate) mod start;

use std::collections::HashSet;

use rekindle_wire::api::{QuotaExceeded, StartKind};
use rekindle_wire::ids::GatewayId;
use rekindle_wire::{InstanceId, VersionNumber, WorkerId};

use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::fleet::instances::VersionInstances;
use crate::fleet::{Fleet, Instance, Stage, cost};

/// A lease that its gateway does not list is granted again at this age: the response that granted it must have been
/// lost. Before that it may still be in flight.
pub(crate) const LOST_ANSWER: Millis = Millis(3_000);

/// How long a gateway's asks avoid a worker that it could not reach.
pub(crate) const AVOID_FOR: Millis = Millis(3_000);

/// What a gateway asks for.
#[derive(Debug, Clone)]
pub(crate) struct SlotRequest {
    pub(crate) gateway: GatewayId,
    /// The version, unless it is the live one.
    pub(crate) version: Option<VersionNumber>,
    pub(crate) held: Vec<InstanceId>,
    /// Start a new instance in this way, whatever exists.
    pub(crate) force: Option<StartKind>,
    /// Addresses of workers the gateway could not reach, avoided until `avoid_until`.
    pub(crate) avoid: Vec<String>,
    pub(crate) avoid_until: Millis,
}

impl SlotRequest {
    /// Avoids a worker for a while, since it could not be asked or refused. Returns how many workers are avoided.
    pub(crate) fn avoid_for(&mut self, address: &str, now: Millis) -> usize {
        self.avoid.push(address.to_owned());
        self.avoid_until = now.plus(AVOID_FOR);
        self.avoid.len()
    }

    /// Whether to avoid instances on `worker`. If there is no other worker, this one may be reachable again.
    fn avoids(&self, fleet: &Fleet, worker: &WorkerId, now: Millis) -> bool {
        let is_named = |worker| {
            let worker = fleet.workers.get(worker);
            worker.is_some_and(|w| self.avoid.contains(&w.address))
        };
        !self.avoid.is_empty() && now < self.avoid_until && is_named(worker) && self.may_go_elsewhere(fleet)
    }

    /// Whether there is a worker that is not avoided.
    pub(crate) fn may_go_elsewhere(&self, fleet: &Fleet) -> bool {
        let all = fleet.workers.values();
        all.filter(|w| w.takes_new()).any(|w| !self.avoid.contains(&w.address))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The function is at its maximum of instances.
    Instances,
    /// An instance of the function is on its way to another worker.
    Migration,
    /// No worker has enough free memory.
    Memory,
    /// No worker has been heard from.
    Workers,
    /// Its namespace is at its quota.
    Quota(QuotaExceeded),
}

/// What to do with an ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Use(InstanceId),
    Start {
        worker: WorkerId,
        kind: StartKind,
    },
    /// Wait until something changes. `free_up` is the unused instance that is worth least.
    Wait {
        shortage: Shortage,
        free_up: Option<InstanceId>,
    },
    /// The function's memory limit exceeds what any worker has.
    TooBig {
        largest: u64,
    },
    /// The function's memory limit exceeds its namespace's quota.
    OverQuota(QuotaExceeded),
}

impl Decision {
    /// Whether no instance was found that could make room.
    fn frees_nothing(&self) -> bool {
        !matches!(self, Self::Wait { free_up: Some(_), .. })
    }
}

/// Number of instances compared by cost. Of equally good ones, the first are compared.
const COMPARED: usize = 8;

/// Decides where an invocation of `live` goes, if no other waits for an instance that is on its way.
pub(crate) fn place(fleet: &Fleet, live: &LiveVersion, ask: &SlotRequest, now: Millis) -> Decision {
    place_behind(0, fleet, live, ask, now)
}

/// Decides where an invocation of `live` goes. `ahead` is the number of asks that wait for its instances that are on
/// their way.
pub(crate) fn place_behind(
    ahead: usize,
    fleet: &Fleet,
    live: &LiveVersion,
    ask: &SlotRequest,
    now: Millis,
) -> Decision {
    let spec = &live.spec;
    let there = fleet.instances.of_version(&spec.function, spec.version);
    let best = there
        .filter(|_| ask.force.is_none())
        .and_then(|v| warmest(fleet, v, ask, now));
    match best {
        // No start is that fast.
        Some((id, cost)) if cost <= cost::FROM_TEMPLATE => return Decision::Use(id),
        Some(_) => {}
        None if ask.force.is_none() && fleet.is_worth_waiting_for(live, ahead, now) => {
            return Decision::Wait {
                shortage: Shortage::Migration,
                free_up: None,
            };
        }
        None => {}
    }
    let decision = begin(fleet, live, there, ask, now);
    match (best, decision) {
        (Some((_, cost)), StartChoice::At(start, kind)) if start.cost < cost => Decision::Start {
            worker: start.worker,
            kind,
        },
        (Some((id, _)), _) => Decision::Use(id),
        (None, StartChoice::At(start, kind)) => Decision::Start {
            worker: start.worker,
            kind,
        },
        (None, StartChoice::Not(decision)) => decision,
    }
}

/// Whether a new instance can start.
enum StartChoice {
    At(start::CheapestWorker, StartKind),
    Not(Decision),
}

fn begin(
    fleet: &Fleet,
    live: &LiveVersion,
    there: Option<&VersionInstances>,
    ask: &SlotRequest,
    now: Millis,
) -> StartChoice {
    let max = live.spec.config.max_instances as usize;
    if let Some(all) = there.filter(|v| v.ids.len() >= max && fleet.counted(v, now) >= max) {
        // A gateway that asks for another instance knows better than a heartbeat that those it holds are in use.
        let not_its_own = |(_, i): &(&InstanceId, &Instance)| {
            ask.force.is_some() || i.lease.as_ref().is_none_or(|l| l.gateway != ask.gateway)
        };
        // Within a version, the least recently used instance of equal state is worth least.
        let unused = fleet.instances.named(all.unused.iter().map(|(_, id)| id));
        let given_up = || {
            let least = fleet.least_worth(unused.filter(not_its_own).take(COMPARED));
            least.or_else(|| longest_held(ask, all))
        };
        // What is given up already may be enough.
        let is_needed = fleet.counted_later(all, now) >= max;
        return StartChoice::Not(Decision::Wait {
            shortage: Shortage::Instances,
            free_up: is_needed.then(given_up).flatten(),
        });
    }
    if let Some(over) = fleet.over_quota(live) {
        return StartChoice::Not(match over.never_fits() {
            true => Decision::OverQuota(over),
            false => Decision::Wait {
                shortage: Shortage::Quota(over),
                free_up: fleet.given_up_for(live, &ask.gateway),
            },
        });
    }
    let kind = ask.force.unwrap_or_else(|| live.natural_start());
    let start = |kind| start::cheapest(fleet, live, kind, now, |w| !ask.avoids(fleet, w, now));
    match start(kind) {
        Ok(best) => StartChoice::At(best, kind),
        // There may be room on workers that lack instruction sets which the snapshot's processes may use. There it
        // boots.
        Err(short) if ask.force.is_none() && kind == StartKind::Restored => match start(StartKind::Booted) {
            Ok(best) => StartChoice::At(best, StartKind::Booted),
            // The instance to evict may be on such a worker.
            Err(booted) => StartChoice::Not(if short.frees_nothing() { booted } else { short }),
        },
        Err(short) => StartChoice::Not(short),
    }
}

/// The instance that another gateway has held longest. It is busy, so recalling it makes the gateways take turns.
fn longest_held(ask: &SlotRequest, all: &VersionInstances) -> Option<InstanceId> {
    let others = all.held.iter().filter(|(gateway, _)| **gateway != ask.gateway);
    let longest = others.filter_map(|(_, leases)| leases.first()).min();
    longest.map(|(_, id)| id.clone())
}

/// The instance with free slots that is expected to have the invocation soonest, and in how many milliseconds. If none
/// has to wait, that is the one used last. Parked instances come after all ready ones, and starting ones after those.
fn warmest(fleet: &Fleet, there: &VersionInstances, ask: &SlotRequest, now: Millis) -> Option<(InstanceId, f64)> {
    let sites = fleet.instances.sites();
    let site_of = |i: &Instance| {
        let site = sites.get(&i.worker)?;
        let may_go_on = match i.stage {
            Stage::Ready | Stage::Starting => true,
            Stage::Parked => fleet.may_go_on(i),
            Stage::Preparing | Stage::Capturing | Stage::Moving | Stage::Stopping => false,
        };
        let takes_new = site.facts.as_ref().is_some_and(|f| f.takes_new) || fleet.awaits_its_move(i);
        let is_free = i.draining.is_none() && i.in_flight < i.slots;
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

/// Instances whose lease may be granted again: it has run out, or the response that granted it was lost.
fn lost_leases<'a>(fleet: &Fleet, there: &'a VersionInstances, ask: &SlotRequest, now: Millis) -> Vec<&'a InstanceId> {
    let ended = there.lease_ends.iter().take_while(|(ends, _)| *ends <= now);
    let mut lost: Vec<_> = ended.map(|(_, id)| id).collect();
    let of_gateway = there.held.get(&ask.gateway);
    // A gateway that knows as many leases as it holds has lost none. It may have lost one if some that it names are no
    // longer its own; that lease runs out.
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
