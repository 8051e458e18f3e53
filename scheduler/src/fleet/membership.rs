//! Which workers there are, and what each may still be given.
//!
//! ```text
//!            heartbeat            5 s without              10 s without
//!   (new) ─────────────> heard ─────────────────> silent ────────────────> gone ──1 h──> forgotten
//!                          ^                        │                        │
//!                          └──────── heartbeat ─────┴────────────────────────┘
//! ```
//!
//! A silent worker is given nothing new, and its leases are recalled until it is heard from again. When it is gone, its
//! instances are forgotten. A worker that returns brings its instances with it: those still of use are kept, the rest
//! are stopped ([`super::heartbeat`] decides which). In any of these states a worker may be draining: its operator
//! wants it empty (which survives restarts of the scheduler), or it was told to stop. It then finishes what it
//! serves.

use std::collections::{BTreeSet, VecDeque};

use rekindle_retention::{Guard, Reading, Thresholds};
use rekindle_wire::api::{WorkerInfo, WorkerState};
use rekindle_wire::internal::{Heartbeat, HostOffer, MemoryPressure, Presence, RestorableSnapshots};
use rekindle_wire::renewal::MadeWith;
use rekindle_wire::stats::WorkerLevels;
use rekindle_wire::{InstanceId, SnapshotId, WorkerId};

use super::sites::{ResourceShortage, WorkerFacts};
use super::{Fleet, Instance, REMEMBER_GONE};
use crate::catalog::RetiredSnapshots;
use crate::clock::Millis;
use crate::fleet::cost;

/// When a worker is short of memory; see docs/how-to/reduce-memory.md.
pub(crate) const SHORTAGE: Thresholds = Thresholds::DEFAULT;
/// A worker silent for this long is given nothing new.
pub(crate) const SILENCE: Millis = Millis(5_000);
/// A worker silent for this long is gone, with everything that ran on it.
pub(crate) const GONE: Millis = Millis(10_000);
/// Number of ended incarnations remembered for each worker.
const ENDED_MAX: usize = 8;
/// How long a gone worker is still listed.
const REMEMBER_WORKER: Millis = Millis(3_600_000);

/// What the scheduler knows of one worker.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) address: String,
    pub(crate) incarnation: u64,
    /// Its last incarnations before the current one.
    pub(crate) ended: VecDeque<u64>,
    /// Number of the last heartbeat applied.
    pub(crate) number: u64,
    pub(crate) capacity: u64,
    pub(crate) offer: HostOffer,
    pub(crate) presence: Presence,
    pub(crate) last_heartbeat: Millis,
    /// Neither silent nor gone.
    pub(crate) alive: bool,
    pub(crate) gone: bool,
    /// An operator wants it empty.
    pub(crate) drained: bool,
    /// Since when it is draining, if it is.
    pub(crate) draining_since: Option<Millis>,
    pub(crate) levels: WorkerLevels,
    pub(crate) pressure: MemoryPressure,
    /// State of the response to memory pressure.
    pub(crate) guard: Guard,
    /// Tools it makes snapshots with.
    pub(crate) makes: Option<MadeWith>,
    /// Snapshots that its instances began as.
    pub(crate) in_use: Vec<SnapshotId>,
}

impl Worker {
    /// Whether new instances may be placed on it.
    pub(crate) fn takes_new(&self) -> bool {
        self.alive && !self.is_draining()
    }

    /// Whether it finishes what it serves and takes nothing new.
    pub(crate) fn is_draining(&self) -> bool {
        self.drained || self.presence != Presence::Serving
    }

    fn is_short_of_disk(&self) -> bool {
        self.levels.disk_free_bytes.is_some_and(|free| free < cost::DISK_LEAST)
    }

    fn facts(&self) -> WorkerFacts {
        WorkerFacts {
            capacity: self.capacity,
            instances_max: self.offer.instances_max as usize,
            address: self.address.as_str().into(),
            zone: self.offer.zone.as_str().into(),
            cpus: self.offer.cpus,
            instruction_sets: self.offer.instruction_sets,
            queue: cost::queue(self.levels.busy, self.offer.cpus),
            want: match (self.is_short_of_disk(), self.guard.is_short()) {
                (true, _) => ResourceShortage::Disk,
                (false, true) => ResourceShortage::Memory,
                (false, false) => ResourceShortage::Nothing,
            },
            takes_new: self.takes_new(),
            is_draining: self.is_draining(),
        }
    }

    /// Whether an operator's name refers to it: its id, its address with or without the port, or its host name.
    fn is_called(&self, id: &WorkerId, name: &str) -> bool {
        let host = self.address.rsplit_once(':').map(|(host, _)| host);
        id.as_str() == name || self.address == name || host == Some(name) || self.offer.host == name
    }
}

impl Fleet {
    /// Applies what a heartbeat says of the worker itself. Returns whether the worker has begun to leave.
    pub(super) fn hear(&mut self, beat: &Heartbeat, now: Millis) -> bool {
        let was = self.workers.get(&beat.worker);
        let returns = was.is_some_and(|w| !w.takes_new());
        let leaves = beat.presence != Presence::Serving && was.is_none_or(|w| w.presence == Presence::Serving);
        let mut ended = was.map(|w| w.ended.clone()).unwrap_or_default();
        if let Some(before) = was.map(|w| w.incarnation).filter(|before| *before != beat.incarnation) {
            ended.push_back(before);
            if ended.len() > ENDED_MAX {
                ended.pop_front();
            }
        }
        let drained = self.drained.contains(&beat.worker);
        let is_draining = drained || beat.presence != Presence::Serving;
        let worker = Worker {
            ended,
            address: beat.address.clone(),
            incarnation: beat.incarnation,
            number: beat.number,
            capacity: beat.memory_capacity_bytes,
            offer: beat.offer.clone(),
            presence: beat.presence,
            last_heartbeat: now,
            alive: beat.presence != Presence::Left,
            gone: beat.presence == Presence::Left,
            drained,
            draining_since: is_draining.then(|| was.and_then(|w| w.draining_since).unwrap_or(now)),
            levels: beat.levels,
            pressure: beat.pressure,
            guard: self.guard_of(beat),
            makes: beat.snapshots.makes.clone(),
            in_use: beat.snapshots.in_use.clone(),
        };
        self.workers.insert(beat.worker.clone(), worker);
        self.settle(&beat.worker);
        if returns {
            self.take_back_all_of(&beat.worker);
        }
        if let Some(kept) = &beat.kept {
            self.instances
                .change_site(&beat.worker, |sites| sites.keep(&beat.worker, kept));
        }
        leaves
    }

    /// Updates the guard with the worker's memory pressure.
    fn guard_of(&self, beat: &Heartbeat) -> Guard {
        let mut guard = self.workers.get(&beat.worker).map(|w| w.guard).unwrap_or_default();
        let MemoryPressure { some, full, available } = beat.pressure;
        let was = guard.is_short();
        guard.read(Reading { some, full, available }, &SHORTAGE);
        if guard.is_short() != was {
            let (worker, is_short) = (&beat.worker, !was);
            tracing::info!(%worker, is_short, ?some, ?full, ?available, "a worker's memory");
        }
        guard
    }

    /// Forgets what the worker kept before its restart: it may be gone, and its reports are numbered anew.
    pub(super) fn forget_kept(&mut self, worker: &WorkerId) {
        self.instances
            .change_site(worker, |sites| sites.keep(worker, &RestorableSnapshots::default()));
    }

    /// Revision of the last report of kept snapshots.
    pub(crate) fn kept_revision(&self, worker: &WorkerId) -> u64 {
        self.instances.sites().kept_revision(worker)
    }

    /// The worker's reported templates whose snapshots are retired.
    pub(crate) fn retired_templates(&self, worker: &WorkerId, retired: &RetiredSnapshots) -> Vec<SnapshotId> {
        self.instances.sites().retired_templates(worker, retired)
    }

    /// Passes a worker's current state on to placement.
    fn settle(&mut self, id: &WorkerId) {
        let facts = self.workers.get(id).map(Worker::facts);
        self.instances.change_site(id, |sites| sites.set_facts(id, facts));
    }

    /// Whether an instance must finish and go: it is draining, or its worker is and it does not move off.
    pub(crate) fn is_leaving(&self, instance: &Instance) -> bool {
        instance.draining.is_some() || (self.is_draining(&instance.worker) && !self.awaits_its_move(instance))
    }

    /// Marks workers that have gone silent. Forgets what ran on those that are gone, and forgets workers that have been
    /// gone for long. Returns whether anything changed: there may be leases to recall, and room.
    pub(crate) fn note_silence(&mut self, now: Millis) -> bool {
        let silent = |w: &Worker, limit| now.since(w.last_heartbeat) > limit;
        let fallen_silent = self.workers_that(|w| w.alive && silent(w, SILENCE));
        let lost = self.workers_that(|w| !w.gone && silent(w, GONE));
        for id in fallen_silent.union(&lost) {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.alive &= !fallen_silent.contains(id);
                worker.gone |= lost.contains(id);
            }
            self.settle(id);
        }
        for id in &fallen_silent {
            self.recall_all_of(id);
        }
        for id in &lost {
            let there: Vec<_> = self.instances.on(id).map(|(id, _)| id.clone()).collect();
            // Not remembered as gone: if the worker is heard from again, they are taken back.
            there.iter().for_each(|id| drop(self.instances.remove(id)));
        }
        for id in self.workers_that(|w| w.gone && silent(w, REMEMBER_WORKER)) {
            self.workers.remove(&id);
            self.settle(&id);
        }
        self.gone.retain(|_, at| now.since(*at) < REMEMBER_GONE);
        !fallen_silent.is_empty() || !lost.is_empty()
    }

    fn workers_that(&self, which: impl Fn(&Worker) -> bool) -> BTreeSet<WorkerId> {
        let found = self.workers.iter().filter(|(_, w)| which(w));
        found.map(|(id, _)| id.clone()).collect()
    }

    /// Excuses a pause of the scheduler itself: no worker was silent then, the scheduler did not listen.
    pub(crate) fn forgive(&mut self, pause: Millis) {
        for worker in self.workers.values_mut() {
            worker.last_heartbeat = worker.last_heartbeat.plus(pause);
        }
    }

    /// Sets the stored list of workers that must be empty.
    pub(crate) fn set_drained(&mut self, drained: BTreeSet<WorkerId>) {
        self.drained = drained;
    }

    /// Starts or ends the draining of a worker, which finishes what it serves and takes nothing new.
    pub(crate) fn drain(&mut self, id: &WorkerId, drained: bool, now: Millis) {
        match drained {
            true => self.drained.insert(id.clone()),
            false => self.drained.remove(id),
        };
        if let Some(worker) = self.workers.get_mut(id) {
            worker.drained = drained;
            let since = worker.draining_since.unwrap_or(now);
            worker.draining_since = worker.is_draining().then_some(since);
        }
        self.settle(id);
        let there: Vec<_> = self.instances.on(id).map(|(id, _)| id.clone()).collect();
        for id in &there {
            if let Some(mut instance) = self.instances.get_mut(id) {
                instance.left_behind = false;
            }
        }
        match drained {
            true => self.recall_leaving_of(id),
            false => self.take_back_all_of(id),
        }
    }

    /// Revokes a worker for good, with everything that ran on it. Its reports are ignored from now on.
    pub(crate) fn expel(&mut self, id: &WorkerId, now: Millis) {
        self.expelled.insert(id.clone());
        let Some(worker) = self.workers.get_mut(id).filter(|w| !w.gone) else {
            return;
        };
        worker.presence = Presence::Left;
        worker.alive = false;
        worker.gone = true;
        self.settle(id);
        self.forget_all_of(id, now);
    }

    /// Recalls every lease on the worker's instances, until [`Self::take_back_all_of`].
    fn recall_all_of(&mut self, worker: &WorkerId) {
        for id in self.leased_on(worker) {
            self.recall_for_now(&id);
        }
    }

    /// Recalls the leases on those of the draining worker's instances that finish there.
    pub(super) fn recall_leaving_of(&mut self, worker: &WorkerId) {
        for id in self.leased_on(worker) {
            if self.instances.get(&id).is_some_and(|i| self.is_leaving(i)) {
                self.recall_for_now(&id);
            }
        }
    }

    /// Recalls the lease on an instance, if there is one, until [`Self::take_back`].
    pub(super) fn recall_for_now(&mut self, id: &InstanceId) {
        if let Some(mut instance) = self.instances.get_mut(id)
            && let Some(lease) = &mut instance.lease
        {
            lease.recall_for_now();
        }
    }

    /// Takes these recalls back, where nothing else is the matter.
    fn take_back_all_of(&mut self, worker: &WorkerId) {
        for id in self.leased_on(worker) {
            self.take_back(&id);
        }
    }

    fn leased_on(&self, worker: &WorkerId) -> Vec<InstanceId> {
        let leased = self.instances.on(worker).filter(|(_, i)| i.lease.is_some());
        leased.map(|(id, _)| id.clone()).collect()
    }

    /// The workers that a name refers to.
    pub(crate) fn workers_called(&self, name: &str) -> Vec<WorkerId> {
        let called = self.workers.iter().filter(|(id, w)| w.is_called(id, name));
        called.map(|(id, _)| id.clone()).collect()
    }

    /// Tools with which all workers that take new instances make snapshots. `None` if they differ or there is no such
    /// worker.
    pub(crate) fn makes(&self) -> Option<MadeWith> {
        let mut all = self.workers.values().filter(|w| w.takes_new()).map(|w| &w.makes);
        let first = all.next()?.clone()?;
        all.all(|makes| makes.as_ref() == Some(&first)).then_some(first)
    }

    /// Whether an instance began as this snapshot, on a worker that may be heard from again.
    pub(crate) fn is_in_use(&self, snapshot: &SnapshotId) -> bool {
        self.workers.values().any(|w| w.in_use.contains(snapshot))
    }

    /// All workers, as shown to users.
    pub(crate) fn worker_infos(&self, now: Millis) -> Vec<WorkerInfo> {
        let ids = self.workers.keys();
        ids.filter_map(|id| self.worker_info(id, now)).collect()
    }

    /// One worker, as shown to users.
    pub(crate) fn worker_info(&self, id: &WorkerId, now: Millis) -> Option<WorkerInfo> {
        let w = self.workers.get(id)?;
        let instances = self.instances.on(id).count();
        Some(WorkerInfo {
            id: id.clone(),
            address: w.address.clone(),
            alive: w.alive,
            memory_capacity_bytes: w.capacity,
            memory_reserved_bytes: self.reserved(id),
            instances: u32::try_from(instances).unwrap_or(u32::MAX),
            instances_max: w.offer.instances_max,
            state: match w {
                _ if w.gone => WorkerState::Gone,
                _ if !w.alive => WorkerState::Silent,
                _ if w.is_draining() && instances == 0 => WorkerState::Drained,
                _ if w.is_draining() => WorkerState::Draining,
                _ => WorkerState::Ready,
            },
            heartbeat_age_ms: now.since(w.last_heartbeat).0,
            host: w.offer.host.clone(),
            cpus: w.offer.cpus,
            zone: w.offer.zone.clone(),
            labels: w.offer.labels.clone(),
        })
    }
}
