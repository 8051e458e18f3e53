//! Which workers there are, and what each may still be given.
//!
//! ```text
//!            heartbeat            5 s without              10 s without
//!   (new) ─────────────> heard ─────────────────> silent ────────────────> gone ──1 h──> forgotten
//!                          ^                        │                        │
//!                          └──────── heartbeat ─────┴────────────────────────┘
//! ```
//!
//! A silent worker is given nothing new and its leases are wanted back; a gone one's instances are forgotten. One that returns brings its
//! instances with it: what is still of use is kept, the rest is stopped ([`super::heartbeat`] says which). Whatever it is heard to be, a worker may be
//! draining, as its operator wants it empty (kept over restarts of the scheduler) or it was told to stop: it finishes what it serves.

use std::collections::{BTreeSet, VecDeque};

use rekindle_retention::{Guard, Reading, Thresholds};
use rekindle_wire::api::{WorkerInfo, WorkerState};
use rekindle_wire::internal::{Heartbeat, Kept, MemoryPressure, Offer, Presence};
use rekindle_wire::renewal::MadeWith;
use rekindle_wire::stats::WorkerLevels;
use rekindle_wire::{SnapshotId, WorkerId};

use super::sites::{Facts, Want};
use super::{Fleet, Instance, Millis, REMEMBER_GONE};
use crate::catalog::Retired;
use crate::placement::cost;

/// When a worker is short of memory; see docs/how-to/reduce-memory.md.
pub(crate) const SHORTAGE: Thresholds = Thresholds::DEFAULT;
/// A worker that was silent for this long is given nothing new.
pub(crate) const SILENCE: Millis = Millis(5_000);
/// One that was silent for this long is gone, and with it what ran on it.
pub(crate) const GONE: Millis = Millis(10_000);
/// So many incarnations of a worker that have ended are known again.
const ENDED_MAX: usize = 8;
/// How long a worker that is gone is still listed.
const REMEMBER_WORKER: Millis = Millis(3_600_000);

/// A worker.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) address: String,
    pub(crate) incarnation: u64,
    /// Those before it, the last ones.
    pub(crate) ended: VecDeque<u64>,
    /// Of the last report that was taken in.
    pub(crate) number: u64,
    pub(crate) capacity: u64,
    pub(crate) offer: Offer,
    pub(crate) presence: Presence,
    pub(crate) last_heartbeat: Millis,
    /// Neither silent nor gone.
    pub(crate) alive: bool,
    pub(crate) gone: bool,
    /// An operator wants it empty.
    pub(crate) drained: bool,
    pub(crate) levels: WorkerLevels,
    pub(crate) pressure: MemoryPressure,
    /// What is done about it.
    pub(crate) guard: Guard,
    /// What it makes snapshots with.
    pub(crate) makes: Option<MadeWith>,
    /// Snapshots that its instances began as.
    pub(crate) in_use: Vec<SnapshotId>,
}

impl Worker {
    /// Whether something new may be placed on it.
    pub(crate) fn takes_new(&self) -> bool {
        self.alive && !self.is_draining()
    }

    /// Whether it shall finish what it serves and take nothing new.
    pub(crate) fn is_draining(&self) -> bool {
        self.drained || self.presence != Presence::Serving
    }

    fn is_short_of_disk(&self) -> bool {
        self.levels.disk_free_bytes.is_some_and(|free| free < cost::DISK_LEAST)
    }

    fn facts(&self) -> Facts {
        Facts {
            capacity: self.capacity,
            instances_max: self.offer.instances_max as usize,
            address: self.address.as_str().into(),
            zone: self.offer.zone.as_str().into(),
            cpus: self.offer.cpus,
            instruction_sets: self.offer.instruction_sets,
            queue: cost::queue(self.levels.busy, self.offer.cpus),
            want: match (self.is_short_of_disk(), self.guard.is_short()) {
                (true, _) => Want::Disk,
                (false, true) => Want::Memory,
                (false, false) => Want::Nothing,
            },
            takes_new: self.takes_new(),
            is_draining: self.is_draining(),
        }
    }

    /// Whether a name of an operator's means it: its id, its address with or without the port, or its host's name.
    fn is_called(&self, id: &WorkerId, name: &str) -> bool {
        let host = self.address.rsplit_once(':').map(|(host, _)| host);
        id.as_str() == name || self.address == name || host == Some(name) || self.offer.host == name
    }
}

impl Fleet {
    /// Takes in what a heartbeat says of the worker itself. Answers whether it has begun to leave.
    pub(super) fn hear(&mut self, beat: &Heartbeat, now: Millis) -> bool {
        let was = self.workers.get(&beat.worker);
        let leaves = beat.presence != Presence::Serving && was.is_none_or(|w| w.presence == Presence::Serving);
        let mut ended = was.map(|w| w.ended.clone()).unwrap_or_default();
        if let Some(before) = was.map(|w| w.incarnation).filter(|before| *before != beat.incarnation) {
            ended.push_back(before);
            if ended.len() > ENDED_MAX {
                ended.pop_front();
            }
        }
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
            drained: self.drained.contains(&beat.worker),
            levels: beat.levels,
            pressure: beat.pressure,
            guard: self.guard_of(beat),
            makes: beat.snapshots.makes.clone(),
            in_use: beat.snapshots.in_use.clone(),
        };
        self.workers.insert(beat.worker.clone(), worker);
        self.settle(&beat.worker);
        if let Some(kept) = &beat.kept {
            self.instances
                .change_site(&beat.worker, |sites| sites.keep(&beat.worker, kept));
        }
        leaves
    }

    /// Takes in how short of memory the worker is.
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

    /// What it kept before its restart it may not have any more, and its reports are numbered anew.
    pub(super) fn forget_kept(&mut self, worker: &WorkerId) {
        self.instances
            .change_site(worker, |sites| sites.keep(worker, &Kept::default()));
    }

    /// Which report of what it keeps was heard last.
    pub(crate) fn kept_revision(&self, worker: &WorkerId) -> u64 {
        self.instances.sites().kept_revision(worker)
    }

    /// Of the templates that it told of, those of retired snapshots.
    pub(crate) fn retired_templates(&self, worker: &WorkerId, retired: &Retired) -> Vec<SnapshotId> {
        self.instances.sites().retired_templates(worker, retired)
    }

    /// Has placement see a worker as it is now.
    fn settle(&mut self, id: &WorkerId) {
        let facts = self.workers.get(id).map(Worker::facts);
        self.instances.change_site(id, |sites| sites.set_facts(id, facts));
    }

    /// Whether an instance shall finish what it serves and go: its version is not the live one, or its worker is draining.
    pub(crate) fn is_leaving(&self, instance: &Instance) -> bool {
        let facts = || self.instances.sites().get(&instance.worker)?.facts.as_ref();
        instance.draining || facts().is_some_and(|f| f.is_draining)
    }

    /// Marks workers that have gone silent, forgets what ran on those that are gone, and those that are gone for long. Answers whether any has
    /// changed: there may be leases to recall, and room.
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
            // Not remembered as gone: when the worker is heard of again, they are taken back.
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

    /// The scheduler itself stood still for a while: nobody was silent in that time, it only did not listen.
    pub(crate) fn forgive(&mut self, pause: Millis) {
        for worker in self.workers.values_mut() {
            worker.last_heartbeat = worker.last_heartbeat.plus(pause);
        }
    }

    /// Which workers shall be empty, as stored.
    pub(crate) fn set_drained(&mut self, drained: BTreeSet<WorkerId>) {
        self.drained = drained;
    }

    /// Has a worker finish what it serves and take nothing new, or ends that.
    pub(crate) fn drain(&mut self, id: &WorkerId, drained: bool) {
        match drained {
            true => self.drained.insert(id.clone()),
            false => self.drained.remove(id),
        };
        if let Some(worker) = self.workers.get_mut(id) {
            worker.drained = drained;
        }
        self.settle(id);
        if drained {
            self.recall_all_of(id);
        }
    }

    /// A worker that is revoked is gone for good, with what ran on it; nothing that it reports is heard any more.
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

    /// Wants back every lease on what runs there.
    pub(super) fn recall_all_of(&mut self, worker: &WorkerId) {
        let leased = self.instances.on(worker).filter(|(_, i)| i.lease.is_some());
        let leased: Vec<_> = leased.map(|(id, _)| id.clone()).collect();
        leased.iter().for_each(|id| self.recall(id));
    }

    /// The workers that a name means.
    pub(crate) fn workers_called(&self, name: &str) -> Vec<WorkerId> {
        let called = self.workers.iter().filter(|(id, w)| w.is_called(id, name));
        called.map(|(id, _)| id.clone()).collect()
    }

    /// What all workers that take new instances make snapshots with; `None` where they differ, or there is none.
    pub(crate) fn makes(&self) -> Option<MadeWith> {
        let mut all = self.workers.values().filter(|w| w.takes_new()).map(|w| &w.makes);
        let first = all.next()?.clone()?;
        all.all(|makes| makes.as_ref() == Some(&first)).then_some(first)
    }

    /// Whether an instance began as this snapshot, on a worker that may be heard of again.
    pub(crate) fn is_in_use(&self, snapshot: &SnapshotId) -> bool {
        self.workers.values().any(|w| w.in_use.contains(snapshot))
    }

    /// Workers as they are told to users.
    pub(crate) fn worker_infos(&self, now: Millis) -> Vec<WorkerInfo> {
        let ids = self.workers.keys();
        ids.filter_map(|id| self.worker_info(id, now)).collect()
    }

    /// One of them.
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
