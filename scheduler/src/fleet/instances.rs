//! All instances, with the indexes that placement queries. They are updated at each change, so no decision scans all
//! instances. A change goes through [`Change`], which updates the indexes when it is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use rekindle_wire::ids::GatewayId;
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

use super::quota::{InstanceEntry, NamespaceInstances};
use super::sites::{Share, Sites, Zone};
use super::{Instance, Map, Stage};
use crate::clock::Millis;

/// All instances by id, and their indexes.
#[derive(Debug, Default)]
pub(crate) struct Instances {
    all: Map<InstanceId, Instance>,
    index: Index,
}

#[derive(Debug, Default)]
struct Index {
    functions: Map<FunctionId, BTreeMap<VersionNumber, VersionInstances>>,
    namespaces: Map<String, NamespaceInstances>,
    sites: Sites,
    /// Leased instances, ordered by when the lease ends.
    leases: BTreeSet<(Millis, InstanceId)>,
    /// Recalled instances whose gateways have not been told.
    untold: BTreeSet<InstanceId>,
    /// Number of instances that are moving or preparing to.
    moving: usize,
}

/// Order in which unleased instances are preferred: ready, then parked, then starting; within these by last use.
pub(crate) type Rank = (u8, Millis);

#[derive(Debug, Default)]
pub(crate) struct VersionInstances {
    pub(crate) ids: BTreeSet<InstanceId>,
    /// Unleased instances with a free slot, best last.
    pub(crate) open: BTreeSet<(Rank, InstanceId)>,
    /// Instances that serve nothing as far as the scheduler knows. Unleased before leased, ready before parked, then
    /// least recently used first.
    pub(crate) unused: BTreeSet<((bool, bool, Millis), InstanceId)>,
    /// Leased instances, ordered by when the lease ends.
    pub(crate) lease_ends: BTreeSet<(Millis, InstanceId)>,
    /// Leased instances by gateway, each with when its lease was granted.
    pub(crate) held: BTreeMap<GatewayId, BTreeSet<(Millis, InstanceId)>>,
    pub(crate) moving: BTreeSet<InstanceId>,
    /// Number of instances on each worker, by the worker's place in the ring.
    pub(crate) workers: BTreeMap<u64, (WorkerId, usize)>,
    /// Number of instances in each zone.
    pub(crate) zones: BTreeMap<Zone, usize>,
}

/// What the indexes hold about one instance.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    function: FunctionId,
    version: VersionNumber,
    worker: WorkerId,
    zone: Zone,
    here: Share,
    target: Option<(WorkerId, Share)>,
    rank: Option<Rank>,
    lease: Option<(GatewayId, Millis, Millis)>,
    unused: Option<(bool, bool, Millis)>,
    untold: bool,
    part: InstanceEntry,
}

impl Entry {
    fn of(i: &Instance) -> Self {
        let takes = i.draining.is_none() && i.in_flight < i.slots && i.lease.is_none();
        let grade = match i.stage {
            Stage::Ready => Some(2),
            Stage::Parked => Some(1),
            Stage::Starting => Some(0),
            Stage::Preparing | Stage::Capturing | Stage::Moving | Stage::Stopping => None,
        };
        let share = |memory, used| Share { memory, used };
        Self {
            function: i.function.clone(),
            version: i.version,
            worker: i.worker.clone(),
            zone: i.zone.clone(),
            here: share(i.set_aside(), !i.is_unused()),
            target: i.moving.as_ref().map(|m| (m.to.clone(), share(i.memory, true))),
            rank: grade.filter(|_| takes).map(|grade| (grade, i.last_active)),
            lease: (i.lease.as_ref()).map(|l| (l.gateway.clone(), l.granted_at, l.expires_at)),
            unused: (i.is_unused()).then_some((i.lease.is_some(), i.stage == Stage::Parked, i.last_active)),
            untold: i.lease.as_ref().is_some_and(|l| l.recalled && !l.told),
            part: InstanceEntry::of(i),
        }
    }
}

impl Index {
    /// Updates the indexes for a change. `None` stands for an instance that does not exist.
    fn note(&mut self, id: &InstanceId, was: Option<&Entry>, is: Option<&Entry>) {
        if was == is {
            return;
        }
        self.note_version(id, was, is);
        self.note_namespace(id, was, is);
        let here = |e: Option<&Entry>| e.map(|e| (e.worker.clone(), e.here));
        if here(was) != here(is) {
            if let Some(was) = was {
                self.sites.leave(&was.worker, Some(id), was.here);
            }
            if let Some(is) = is {
                self.sites.come(&is.worker, Some(id), is.here);
            }
        }
        let target = |e: Option<&Entry>| e.and_then(|e| e.target.clone());
        let (left, meant) = (target(was), target(is));
        if left != meant {
            if let Some((worker, share)) = left {
                self.sites.leave(&worker, None, share);
            }
            if let Some((worker, share)) = meant {
                self.sites.come(&worker, None, share);
            }
        }
        let moves = |e: Option<&Entry>| usize::from(e.is_some_and(|e| e.target.is_some()));
        self.moving = self.moving + moves(is) - moves(was);
        let ends = |e: Option<&Entry>| e.and_then(|e| e.lease.as_ref().map(|l| l.2));
        follow(&mut self.leases, id, ends(was), ends(is));
        if is.is_some_and(|e| e.untold) {
            self.untold.insert(id.clone());
        } else if was.is_some_and(|e| e.untold) {
            self.untold.remove(id);
        }
    }

    fn note_namespace(&mut self, id: &InstanceId, was: Option<&Entry>, is: Option<&Entry>) {
        let Some(named) = is.or(was) else { return };
        let parts = (was.map(|e| e.part), is.map(|e| e.part));
        if parts.0 == parts.1 {
            return;
        }
        let namespace = named.function.namespace();
        match self.namespaces.get_mut(namespace) {
            Some(of) => {
                of.note(id, parts.0, parts.1);
                if of.is_empty() {
                    self.namespaces.remove(namespace);
                }
            }
            None => {
                let mut of = NamespaceInstances::default();
                of.note(id, parts.0, parts.1);
                self.namespaces.insert(namespace.to_owned(), of);
            }
        }
    }

    fn note_version(&mut self, id: &InstanceId, was: Option<&Entry>, is: Option<&Entry>) {
        let Some(named) = is.or(was) else { return };
        let versions = match self.functions.get_mut(&named.function) {
            Some(versions) => versions,
            None => self.functions.entry(named.function.clone()).or_default(),
        };
        let of_version = versions.entry(named.version).or_default();
        of_version.note(id, was, is);
        if of_version.ids.is_empty() {
            versions.remove(&named.version);
            if versions.is_empty() {
                self.functions.remove(&named.function);
            }
        }
    }
}

impl VersionInstances {
    fn note(&mut self, id: &InstanceId, was: Option<&Entry>, is: Option<&Entry>) {
        follow(&mut self.open, id, was.and_then(|e| e.rank), is.and_then(|e| e.rank));
        follow(
            &mut self.unused,
            id,
            was.and_then(|e| e.unused),
            is.and_then(|e| e.unused),
        );
        let ends = |e: Option<&Entry>| e.and_then(|e| e.lease.as_ref().map(|l| l.2));
        follow(&mut self.lease_ends, id, ends(was), ends(is));
        let held = |e: Option<&Entry>| e.and_then(|e| e.lease.as_ref().map(|l| (l.0.clone(), l.1)));
        let (held, holds) = (held(was), held(is));
        if held != holds {
            if let Some((gateway, since)) = held
                && let Some(leases) = self.held.get_mut(&gateway)
            {
                leases.remove(&(since, id.clone()));
                if leases.is_empty() {
                    self.held.remove(&gateway);
                }
            }
            if let Some((gateway, since)) = holds {
                self.held.entry(gateway).or_default().insert((since, id.clone()));
            }
        }
        let member = |set: &mut BTreeSet<InstanceId>, had: bool, has: bool| match (had, has) {
            (false, true) => drop(set.insert(id.clone())),
            (true, false) => drop(set.remove(id)),
            _ => {}
        };
        let moves = |e: &Entry| e.target.is_some();
        member(&mut self.ids, was.is_some(), is.is_some());
        member(&mut self.moving, was.is_some_and(moves), is.is_some_and(moves));
        let place = |e: Option<&Entry>| e.map(|e| (e.worker.clone(), e.zone.clone()));
        if place(was) == place(is) {
            return;
        }
        if let Some(was) = was {
            let at = super::ring::place_of(&was.worker);
            if let Some((_, count)) = self.workers.get_mut(&at) {
                *count -= 1;
                if *count == 0 {
                    self.workers.remove(&at);
                }
            }
            if let Some(count) = self.zones.get_mut(&was.zone) {
                *count -= 1;
                if *count == 0 {
                    self.zones.remove(&was.zone);
                }
            }
        }
        if let Some(is) = is {
            let at = super::ring::place_of(&is.worker);
            self.workers.entry(at).or_insert_with(|| (is.worker.clone(), 0)).1 += 1;
            *self.zones.entry(is.zone.clone()).or_default() += 1;
        }
    }
}

/// Moves an instance from its old position in an order to its new one.
fn follow<K: Ord>(order: &mut BTreeSet<(K, InstanceId)>, id: &InstanceId, was: Option<K>, is: Option<K>) {
    if was == is {
        return;
    }
    if let Some(was) = was {
        order.remove(&(was, id.clone()));
    }
    order.extend(is.map(|is| (is, id.clone())));
}

/// An instance under modification.
pub(crate) struct Change<'a> {
    instance: &'a mut Instance,
    index: &'a mut Index,
    id: InstanceId,
    was: Entry,
}

impl Deref for Change<'_> {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        self.instance
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Instance {
        self.instance
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.index
            .note(&self.id, Some(&self.was), Some(&Entry::of(self.instance)));
    }
}

impl Instances {
    pub(crate) fn get(&self, id: &InstanceId) -> Option<&Instance> {
        self.all.get(id)
    }

    /// Returns an instance for modification.
    pub(crate) fn get_mut(&mut self, id: &InstanceId) -> Option<Change<'_>> {
        let instance = self.all.get_mut(id)?;
        Some(Change {
            was: Entry::of(instance),
            instance,
            index: &mut self.index,
            id: id.clone(),
        })
    }

    pub(crate) fn insert(&mut self, id: InstanceId, mut instance: Instance) {
        self.remove(&id);
        instance.zone = self.index.sites.zone_of(&instance.worker);
        self.index.note(&id, None, Some(&Entry::of(&instance)));
        self.all.insert(id, instance);
    }

    pub(crate) fn remove(&mut self, id: &InstanceId) -> Option<Instance> {
        let instance = self.all.remove(id)?;
        self.index.note(id, Some(&Entry::of(&instance)), None);
        Some(instance)
    }

    pub(crate) fn contains_key(&self, id: &InstanceId) -> bool {
        self.all.contains_key(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&InstanceId, &Instance)> {
        self.all.iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Instance> {
        self.all.values()
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &InstanceId> {
        self.all.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn of_version(&self, function: &FunctionId, version: VersionNumber) -> Option<&VersionInstances> {
        self.index.functions.get(function)?.get(&version)
    }

    pub(crate) fn of_namespace(&self, namespace: &str) -> Option<&NamespaceInstances> {
        self.index.namespaces.get(namespace)
    }

    /// The instances of a function, whatever their version.
    pub(crate) fn ids_of(&self, function: &FunctionId) -> Vec<InstanceId> {
        let versions = self.index.functions.get(function).into_iter().flatten();
        versions.flat_map(|(_, v)| v.ids.iter().cloned()).collect()
    }

    /// The instances on a worker, in order.
    pub(crate) fn on(&self, worker: &WorkerId) -> impl Iterator<Item = (&InstanceId, &Instance)> {
        let ids = self.index.sites.get(worker).into_iter().flat_map(|site| &site.ids);
        ids.filter_map(|id| Some((id, self.all.get(id)?)))
    }

    /// The leased instances among these ids.
    pub(crate) fn named<'a>(
        &'a self,
        ids: impl IntoIterator<Item = &'a InstanceId>,
    ) -> impl Iterator<Item = (&'a InstanceId, &'a Instance)> {
        ids.into_iter().filter_map(|id| Some((id, self.all.get(id)?)))
    }

    /// Number of instances that are moving or preparing to.
    pub(crate) fn moving(&self) -> usize {
        self.index.moving
    }

    pub(crate) fn leased(&self) -> usize {
        self.index.leases.len()
    }

    /// Instances whose lease has ended by `now`.
    pub(crate) fn lease_ended(&self, now: Millis) -> Vec<InstanceId> {
        let ended = self.index.leases.iter().take_while(|(at, _)| *at <= now);
        ended.map(|(_, id)| id.clone()).collect()
    }

    /// Instances that this gateway must give back and has not been told about.
    pub(crate) fn untold_of(&self, gateway: &GatewayId) -> Vec<InstanceId> {
        let held = |i: &Instance| i.lease.as_ref().is_some_and(|l| l.gateway == *gateway);
        let untold = self.named(&self.index.untold).filter(|(_, i)| held(i));
        untold.map(|(id, _)| id.clone()).collect()
    }

    pub(crate) fn sites(&self) -> &Sites {
        &self.index.sites
    }

    /// Changes what is known of a worker. If its zone changes, its instances follow it.
    pub(crate) fn change_site(&mut self, worker: &WorkerId, change: impl FnOnce(&mut Sites)) {
        let was = self.index.sites.zone_of(worker);
        change(&mut self.index.sites);
        let zone = self.index.sites.zone_of(worker);
        if zone != was {
            let ids: Vec<_> = self.on(worker).map(|(id, _)| id.clone()).collect();
            for id in ids {
                if let Some(mut instance) = self.get_mut(&id) {
                    instance.zone = zone.clone();
                }
            }
        }
    }

    /// Records that the instance is now on another worker.
    pub(crate) fn relocate(&mut self, id: &InstanceId, to: &WorkerId) {
        let zone = self.index.sites.zone_of(to);
        if let Some(mut instance) = self.get_mut(id) {
            instance.worker = to.clone();
            instance.zone = zone;
        }
    }
}

#[cfg(test)]
impl std::ops::Index<&InstanceId> for Instances {
    type Output = Instance;

    fn index(&self, id: &InstanceId) -> &Instance {
        &self.all[id]
    }
}

#[cfg(test)]
impl Instances {
    /// Panics if the indexes differ from ones built anew from all instances.
    pub(crate) fn check(&self) {
        let mut anew = Index {
            sites: self.index.sites.without_instances(),
            ..Index::default()
        };
        for (id, instance) in &self.all {
            anew.note(id, None, Some(&Entry::of(instance)));
        }
        assert_eq!(format!("{:?}", anew.leases), format!("{:?}", self.index.leases));
        assert_eq!((anew.moving, &anew.untold), (self.index.moving, &self.index.untold));
        assert_eq!(anew.namespaces, self.index.namespaces);
        assert_eq!(anew.functions.len(), self.index.functions.len());
        for (function, versions) in &anew.functions {
            assert_eq!(format!("{versions:?}"), format!("{:?}", self.index.functions[function]));
        }
        anew.sites.assert_same(&self.index.sites);
    }
}
