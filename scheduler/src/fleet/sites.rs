//! What each worker has room for and holds, in the orders that placement needs. These are by room, by room without
//! unused instances, by place in the ring of its zone, and by snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rekindle_wire::internal::RestorableSnapshots;
use rekindle_wire::processor::InstructionSets;
use rekindle_wire::{InstanceId, SnapshotId, WorkerId};

use super::{Map, ring};
use crate::catalog::RetiredSnapshots;
use crate::clock::Millis;

/// A zone's name. Workers of one zone fail together.
pub(crate) type Zone = Arc<str>;

/// What one instance takes from a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Memory set aside for it, bytes.
    pub(crate) memory: u64,
    /// Whether it serves something or is moving.
    pub(crate) used: bool,
}

/// What all instances on one worker take together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WorkerUsage {
    pub(crate) instances: usize,
    /// Memory set aside for them, bytes.
    pub(crate) memory: u64,
    /// Part of `memory` for instances that serve something or are moving, bytes.
    pub(crate) in_use: u64,
    /// Number of instances that do neither.
    pub(crate) unused: usize,
}

/// What a worker is short of. A new instance goes to a worker that is short of anything only if there is no other, and
/// then to the earliest variant here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResourceShortage {
    Nothing,
    /// Each further instance makes others wait or go.
    Memory,
    /// The disk is all but full, and whatever needs it there fails.
    Disk,
}

/// What a worker says of itself, as far as placement needs it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WorkerFacts {
    /// Memory it may give to instances, bytes.
    pub(crate) capacity: u64,
    /// Maximum number of instances; 0 for no limit.
    pub(crate) instances_max: usize,
    pub(crate) address: Arc<str>,
    pub(crate) zone: Zone,
    pub(crate) cpus: u32,
    /// Instruction sets of its processors; empty if it does not report them.
    pub(crate) instruction_sets: InstructionSets,
    /// Extra time for each millisecond of work, caused by its load.
    pub(crate) queue: f64,
    pub(crate) want: ResourceShortage,
    /// Whether new instances may be placed on it.
    pub(crate) takes_new: bool,
    /// Whether it is to finish what it serves.
    pub(crate) is_draining: bool,
}

/// Where a worker has a snapshot's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Its template is open.
    Template,
    /// Its chunks are on the disk.
    Disk,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Site {
    pub(crate) facts: Option<WorkerFacts>,
    pub(crate) taken: WorkerUsage,
    pub(crate) ids: BTreeSet<InstanceId>,
    /// When the starts given to it so far will have had the processor time they need, milliseconds.
    busy_until: f64,
    kept: RestorableSnapshots,
}

impl Site {
    /// Memory that can still be set aside, bytes; 0 if it has its maximum number of instances.
    pub(crate) fn room(&self) -> u64 {
        let Some(facts) = &self.facts else { return 0 };
        if facts.instances_max > 0 && self.taken.instances >= facts.instances_max {
            return 0;
        }
        facts.capacity.saturating_sub(self.taken.memory)
    }

    /// Memory that would be free without the unused instances, bytes.
    fn yields(&self) -> Option<u64> {
        let facts = self.facts.as_ref().filter(|_| self.taken.unused > 0)?;
        Some(facts.capacity.saturating_sub(self.taken.in_use))
    }

    fn takes_new(&self) -> Option<&WorkerFacts> {
        self.facts.as_ref().filter(|f| f.takes_new)
    }

    /// How long `work` milliseconds of processor time wait there, given the reported load.
    pub(crate) fn wait(&self, work: f64) -> f64 {
        work * self.facts.as_ref().map_or(0.0, |f| f.queue)
    }

    /// How long another start waits for earlier starts to get their processor time. An invocation does not wait for
    /// them: it is short, and the kernel shares fairly.
    pub(crate) fn behind(&self, now: Millis) -> f64 {
        (self.busy_until - as_f64(now.0)).max(0.0)
    }
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds and bytes are far below 2^53")]
pub(crate) fn as_f64(n: u64) -> f64 {
    n as f64
}

#[derive(Debug, Default)]
pub(crate) struct Sites {
    all: Map<WorkerId, Site>,
    orders: Orders,
    holders: Map<SnapshotId, BTreeMap<u64, (WorkerId, Tier)>>,
}

/// Workers that accept new instances, in several orders.
#[derive(Debug, Default, PartialEq)]
struct Orders {
    by_room: BTreeSet<(u64, WorkerId)>,
    by_yield: BTreeSet<(u64, WorkerId)>,
    capacities: BTreeMap<u64, usize>,
    rings: BTreeMap<Zone, BTreeMap<u64, WorkerId>>,
}

impl Orders {
    fn put(&mut self, worker: &WorkerId, site: &Site) {
        if site.takes_new().is_some() {
            self.by_room.insert((site.room(), worker.clone()));
            self.by_yield.extend(site.yields().map(|bytes| (bytes, worker.clone())));
        }
    }

    fn take(&mut self, worker: &WorkerId, site: &Site) {
        if site.takes_new().is_some() {
            self.by_room.remove(&(site.room(), worker.clone()));
            if let Some(bytes) = site.yields() {
                self.by_yield.remove(&(bytes, worker.clone()));
            }
        }
    }

    fn join(&mut self, worker: &WorkerId, site: &Site) {
        self.put(worker, site);
        if let Some(facts) = site.takes_new() {
            *self.capacities.entry(facts.capacity).or_default() += 1;
            let ring = self.rings.entry(facts.zone.clone()).or_default();
            ring.insert(ring::place_of(worker), worker.clone());
        }
    }

    fn part(&mut self, worker: &WorkerId, site: &Site) {
        self.take(worker, site);
        let Some(facts) = site.takes_new() else { return };
        if let Some(count) = self.capacities.get_mut(&facts.capacity) {
            *count -= 1;
            if *count == 0 {
                self.capacities.remove(&facts.capacity);
            }
        }
        if let Some(ring) = self.rings.get_mut(&facts.zone) {
            ring.remove(&ring::place_of(worker));
            if ring.is_empty() {
                self.rings.remove(&facts.zone);
            }
        }
    }
}

impl Sites {
    pub(crate) fn get(&self, worker: &WorkerId) -> Option<&Site> {
        self.all.get(worker)
    }

    /// A worker's zone; empty if it has not been heard from.
    pub(crate) fn zone_of(&self, worker: &WorkerId) -> Zone {
        let facts = self.all.get(worker).and_then(|s| s.facts.as_ref());
        facts.map(|f| f.zone.clone()).unwrap_or_default()
    }

    /// Adds an instance. `id` is `None` while the instance is still moving here.
    pub(super) fn come(&mut self, worker: &WorkerId, id: Option<&InstanceId>, share: Share) {
        self.change(worker, |site| {
            site.ids.extend(id.cloned());
            let taken = &mut site.taken;
            taken.instances += 1;
            taken.memory += share.memory;
            if share.used {
                taken.in_use += share.memory;
            } else {
                taken.unused += 1;
            }
        });
    }

    /// Removes an instance.
    pub(super) fn leave(&mut self, worker: &WorkerId, id: Option<&InstanceId>, share: Share) {
        self.change(worker, |site| {
            if let Some(id) = id {
                site.ids.remove(id);
            }
            let taken = &mut site.taken;
            taken.instances -= 1;
            taken.memory -= share.memory;
            if share.used {
                taken.in_use -= share.memory;
            } else {
                taken.unused -= 1;
            }
        });
    }

    /// Changes what is taken of a worker.
    fn change(&mut self, worker: &WorkerId, change: impl FnOnce(&mut Site)) {
        if !self.all.contains_key(worker) {
            self.all.insert(worker.clone(), Site::default());
        }
        if let Some(site) = self.all.get_mut(worker) {
            self.orders.take(worker, site);
            change(site);
            self.orders.put(worker, site);
        }
    }

    /// Sets what is known of a worker; `None` when the worker is forgotten.
    pub(super) fn set_facts(&mut self, worker: &WorkerId, facts: Option<WorkerFacts>) {
        if facts.is_none() && !self.all.contains_key(worker) {
            return;
        }
        let site = self.all.entry(worker.clone()).or_default();
        if facts.is_none() {
            let kept = std::mem::take(&mut site.kept);
            self.drop_kept(worker, &kept);
        }
        let Some(site) = self.all.get_mut(worker) else { return };
        if site.facts == facts {
            return;
        }
        // The load changes all the time and is in none of the orders.
        let order = |f: &Option<WorkerFacts>| f.clone().map(|f| WorkerFacts { queue: 0.0, ..f });
        if order(&site.facts) == order(&facts) {
            site.facts = facts;
            return;
        }
        self.orders.part(worker, site);
        site.facts = facts;
        self.orders.join(worker, site);
        if site.facts.is_none() && site.ids.is_empty() && site.taken == WorkerUsage::default() {
            self.all.remove(worker);
        }
    }

    /// Records a start in flight to the worker that needs `work` milliseconds of processor time.
    pub(super) fn expect(&mut self, worker: &WorkerId, work: f64, now: Millis) {
        if let Some(site) = self.all.get_mut(worker) {
            let cpus = site.facts.as_ref().map_or(1, |f| f.cpus.max(1));
            site.busy_until = site.busy_until.max(as_f64(now.0)) + work / f64::from(cpus);
        }
    }

    /// Applies a report of the snapshots that a worker keeps.
    pub(super) fn keep(&mut self, worker: &WorkerId, kept: &RestorableSnapshots) {
        let Some(site) = self.all.get_mut(worker) else { return };
        let was = std::mem::replace(&mut site.kept, kept.clone());
        self.drop_kept(worker, &was);
        let at = ring::place_of(worker);
        for (tier, ids) in [(Tier::Disk, &kept.cached), (Tier::Template, &kept.templates)] {
            for id in ids {
                let holders = self.holders.entry(id.clone()).or_default();
                holders.insert(at, (worker.clone(), tier));
            }
        }
    }

    fn drop_kept(&mut self, worker: &WorkerId, kept: &RestorableSnapshots) {
        let at = ring::place_of(worker);
        for id in kept.templates.iter().chain(&kept.cached) {
            if let Some(holders) = self.holders.get_mut(id) {
                holders.remove(&at);
                if holders.is_empty() {
                    self.holders.remove(id);
                }
            }
        }
    }

    /// A worker's reported templates whose snapshots are retired.
    pub(crate) fn retired_templates(&self, worker: &WorkerId, retired: &RetiredSnapshots) -> Vec<SnapshotId> {
        let kept = self.all.get(worker).map(|site| site.kept.templates.iter());
        kept.into_iter()
            .flatten()
            .filter(|id| retired.has(id))
            .cloned()
            .collect()
    }

    /// Revision of the last report of kept snapshots applied; 0 for none.
    pub(crate) fn kept_revision(&self, worker: &WorkerId) -> u64 {
        self.all.get(worker).map_or(0, |site| site.kept.revision)
    }

    /// The workers that keep a snapshot, by their places in the ring.
    pub(crate) fn holders(&self, snapshot: &SnapshotId) -> Option<&BTreeMap<u64, (WorkerId, Tier)>> {
        self.holders.get(snapshot)
    }

    /// For each zone, the workers that accept new instances, by their places in the ring.
    pub(crate) fn rings(&self) -> &BTreeMap<Zone, BTreeMap<u64, WorkerId>> {
        &self.orders.rings
    }

    /// Workers that accept new instances, most room first.
    pub(crate) fn by_room(&self) -> impl Iterator<Item = (u64, &WorkerId)> {
        self.orders.by_room.iter().rev().map(|(room, worker)| (*room, worker))
    }

    /// Workers that accept new instances and have unused ones, by the room without those, most first.
    pub(crate) fn by_yield(&self) -> impl Iterator<Item = (u64, &WorkerId)> {
        self.orders
            .by_yield
            .iter()
            .rev()
            .map(|(bytes, worker)| (*bytes, worker))
    }

    /// The most memory of any worker that accepts new instances.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.orders.capacities.last_key_value().map(|(bytes, _)| *bytes)
    }
}

#[cfg(test)]
impl Sites {
    pub(super) fn without_instances(&self) -> Self {
        let mut empty = Self::default();
        for (worker, site) in &self.all {
            empty.set_facts(worker, site.facts.clone());
        }
        empty
    }

    pub(super) fn assert_same(&self, other: &Self) {
        for (worker, site) in &other.all {
            let anew = self.all.get(worker).cloned().unwrap_or_default();
            assert_eq!((anew.taken, &anew.ids), (site.taken, &site.ids), "{worker}");
        }
        assert_eq!(self.orders, other.orders);
    }
}
