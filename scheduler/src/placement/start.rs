//! Finds the worker on which a new instance is expected to answer soonest. It examines workers at the function's own
//! places in the ring of each zone, some that hold its snapshot or run it, and the one with most room. Their number is
//! bounded, so the cost of a decision does not depend on the number of workers. Room that exists anywhere is found.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use rekindle_wire::WorkerId;
use rekindle_wire::api::StartKind;

use super::{Decision, Shortage};
use crate::catalog::LiveVersion;
use crate::clock::Millis;
use crate::fleet::cost;
use crate::fleet::instances::VersionInstances;
use crate::fleet::sites::{ResourceShortage, Tier};
use crate::fleet::{Fleet, ring};

/// Number of a function's places, over all rings.
const OWN: u64 = 8;
/// Number of workers examined among those that hold its snapshot, and among those that run it.
const HOLDING: usize = 6;

/// Where to start an instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CheapestWorker {
    pub(crate) worker: WorkerId,
    /// Expected time until the function has the invocation, milliseconds.
    pub(crate) cost: f64,
}

/// The best worker for a new instance among those that are `usable`.
pub(crate) fn cheapest(
    fleet: &Fleet,
    live: &LiveVersion,
    kind: StartKind,
    now: Millis,
    usable: impl Fn(&WorkerId) -> bool,
) -> Result<CheapestWorker, Decision> {
    let sites = fleet.instances.sites();
    let view = View::new(fleet, live, kind, now);
    let usable = |worker: &WorkerId| {
        usable(worker) && !fleet.is_kept_from(&live.spec.function, worker) && view.has_instructions(worker)
    };
    let mut best: Option<((ResourceShortage, f64), &WorkerId)> = None;
    let mut consider = |worker| {
        if let Some(cost) = view.cost(worker)
            && best.is_none_or(|(least, _)| cost < least)
            && usable(worker)
        {
            best = Some((cost, worker));
        }
    };
    view.candidates(&mut consider);
    let mut with_room = sites.by_room().take_while(|(room, _)| *room >= view.need);
    if let Some((_, roomiest)) = with_room.find(|(_, worker)| usable(worker)) {
        consider(roomiest);
    }
    match best {
        Some(((_, cost), worker)) => Ok(CheapestWorker {
            worker: worker.clone(),
            cost,
        }),
        None => Err(view.shortage(usable)),
    }
}

struct View<'a> {
    fleet: &'a Fleet,
    live: &'a LiveVersion,
    of_version: Option<&'a VersionInstances>,
    holders: Option<&'a BTreeMap<u64, (WorkerId, Tier)>>,
    kind: StartKind,
    now: Millis,
    need: u64,
    /// Number of instances of the version in the zone that has fewest; `None` if there is one zone.
    fewest: Option<usize>,
}

impl<'a> View<'a> {
    fn new(fleet: &'a Fleet, live: &'a LiveVersion, kind: StartKind, now: Millis) -> Self {
        let spec = &live.spec;
        let of_version = fleet.instances.of_version(&spec.function, spec.version);
        let sites = fleet.instances.sites();
        let snapshot = spec.snapshot.as_ref().filter(|_| kind != StartKind::Booted);
        let in_zone = |zone| of_version.and_then(|v| v.zones.get(zone)).copied().unwrap_or(0);
        let zones = sites.rings().keys();
        Self {
            fleet,
            live,
            of_version,
            holders: snapshot.and_then(|id| sites.holders(id)),
            kind,
            now,
            need: live.memory(),
            fewest: zones.map(in_zone).min().filter(|_| sites.rings().len() > 1),
        }
    }

    /// What the worker is short of, and the expected duration of a start there. `None` if it has no room.
    fn cost(&self, worker: &WorkerId) -> Option<(ResourceShortage, f64)> {
        let site = self.fleet.instances.sites().get(worker)?;
        let facts = site.facts.as_ref().filter(|f| f.takes_new)?;
        let room = site.room();
        if room < self.need {
            return None;
        }
        let at = ring::place_of(worker);
        let runs = self.of_version.is_some_and(|v| v.workers.contains_key(&at));
        let held = self.holders.and_then(|h| h.get(&at)).map(|(_, tier)| *tier);
        // A worker that runs the version has its template open, though it may not have reported that yet.
        let tier = if runs { Some(Tier::Template) } else { held };
        let zone = self.fewest.map_or(0.0, |fewest| {
            let of_version = self.of_version;
            let here = of_version.and_then(|v| v.zones.get(&facts.zone)).copied().unwrap_or(0);
            let all = of_version.map_or(0, |v| v.ids.len());
            cost::spread(here, fewest, all, self.fleet.instances.sites().rings().len())
        });
        let wait = site.behind(self.now) + site.wait(cost::work(self.kind) + cost::INVOCATION);
        let start = cost::start(self.kind, tier, runs);
        let cost = start + wait + zone + cost::crowding(room - self.need, facts.capacity);
        Some((facts.want, cost))
    }

    /// Whether its processors have the instruction sets of the snapshot's. A boot detects them itself.
    fn has_instructions(&self, worker: &WorkerId) -> bool {
        let needed = self.live.spec.instruction_sets;
        let facts = self
            .fleet
            .instances
            .sites()
            .get(worker)
            .and_then(|site| site.facts.as_ref());
        self.kind == StartKind::Booted || facts.is_none_or(|f| f.instruction_sets.lacks(needed).is_empty())
    }

    /// Passes the candidates to `consider`, always in the same order: of several with the same cost the first is taken.
    fn candidates(&self, consider: &mut impl FnMut(&'a WorkerId)) {
        let rings = self.fleet.instances.sites().rings();
        let home = ring::place(self.live.spec.function.as_str());
        let each = OWN.div_ceil(rings.len().max(1) as u64).max(2);
        for n in 0..each {
            for (z, workers) in rings.values().enumerate() {
                // The zones alternate, so that not every function is at home in the first.
                let at = ring::scatter(home.wrapping_add(n)).wrapping_add(ring::scatter(z as u64));
                after(workers, at).take(1).for_each(&mut *consider);
            }
        }
        // A different start each time, since the first ones may be full; the same one while nothing changes.
        let there = self.of_version.map_or(0, |v| v.ids.len());
        let from = ring::scatter(home.wrapping_add(there as u64));
        if let Some(holders) = self.holders {
            after(holders, from).take(HOLDING).for_each(|(w, _)| consider(w));
        }
        if let Some(of_version) = self.of_version {
            let running = after(&of_version.workers, from);
            running.take(HOLDING).for_each(|(w, _)| consider(w));
        }
    }

    /// What is missing if there is no worker.
    fn shortage(&self, usable: impl Fn(&WorkerId) -> bool) -> Decision {
        let sites = self.fleet.instances.sites();
        let Some(largest) = sites.largest() else {
            return Decision::Wait {
                shortage: Shortage::Workers,
                free_up: None,
            };
        };
        if largest < self.need {
            return Decision::TooBig { largest };
        }
        let mut fitting = sites.by_yield().take_while(|(bytes, _)| *bytes >= self.need);
        let from = fitting.find(|(_, worker)| usable(worker));
        Decision::Wait {
            shortage: Shortage::Memory,
            free_up: from.and_then(|(_, w)| self.fleet.least_worth(self.fleet.instances.on(w))),
        }
    }
}

/// The entries from that place on, once around the ring.
fn after<T>(ring: &BTreeMap<u64, T>, at: u64) -> impl Iterator<Item = &T> {
    let on = ring.range((Excluded(at), Unbounded));
    on.chain(ring.range(..=at)).map(|(_, what)| what)
}
