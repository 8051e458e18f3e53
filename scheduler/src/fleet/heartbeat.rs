//! Applies a worker's heartbeat. The worker decides what runs on it; the scheduler decides what should run.
//!
//! A heartbeat may list an unknown instance if its worker, or the scheduler, was away for a while:
//!
//! - An instance of the live version is kept, unless the version is already at its maximum without it.
//! - Above that maximum, or for an older version, the instance finishes its invocations and is then retired. A copy
//!   that somebody has asked for stays: its worker may list it before the migration's source has said that it is there.
//! - One whose order the worker does not show finishes its invocations, too: workers of earlier releases show none. It
//!   gets nothing new, and no secrets.
//! - An instance of no known version is stopped at once. So is one that was given up: it was stopped, or its worker has
//!   restarted since.

use std::collections::HashSet;

use rekindle_wire::api::{InstanceInfo, InstanceState};
use rekindle_wire::internal::Heartbeat;
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

use super::{Draining, Fleet, Instance, Stage, UNSEEN, Worker};
use crate::catalog::ClaimedVersion;
use crate::clock::Millis;

impl Fleet {
    /// Applies a heartbeat and returns the instances that the worker must stop. `known` looks a version up in the
    /// store. The heartbeat's tickets are those that a scheduler wrote.
    pub(crate) fn heartbeat(
        &mut self,
        beat: &Heartbeat,
        now: Millis,
        known: impl Fn(&FunctionId, VersionNumber) -> ClaimedVersion,
    ) -> Vec<InstanceId> {
        if self.expelled.contains(&beat.worker) {
            // The heartbeat was in flight when the worker was revoked.
            return Vec::new();
        }
        if self.is_late(beat) {
            return Vec::new();
        }
        let restarted = self
            .workers
            .get(&beat.worker)
            .is_some_and(|w| w.incarnation != beat.incarnation);
        if restarted {
            self.forget_all_of(&beat.worker, now);
            self.forget_kept(&beat.worker);
        }
        let leaves = self.hear(beat, now);
        let mut stop = Vec::new();
        for info in &beat.instances {
            match self.instances.get(&info.id) {
                // The instance is moving to this worker and does not belong to it yet.
                Some(instance) if instance.moves_to(&beat.worker) => {
                    if let Some(mut instance) = self.instances.get_mut(&info.id) {
                        instance.note_where(info, &beat.worker);
                    }
                }
                // The instance has moved on.
                Some(instance) if instance.worker != beat.worker => stop.push(info.id.clone()),
                Some(instance) => {
                    let was = instance.stage;
                    if let Some(mut instance) = self.instances.get_mut(&info.id) {
                        instance.update(info, now);
                    }
                    let stands_by = self.instances.get(&info.id).is_some_and(|instance| {
                        let ready = was == Stage::Starting && instance.stage == Stage::Ready;
                        match instance.to_park {
                            true => info.state == InstanceState::Parked,
                            false => ready && instance.keeping.ahead.is_some(),
                        }
                    });
                    if stands_by {
                        self.filled(&info.id);
                    }
                }
                None if self.gone.contains_key(&info.id) => stop.push(info.id.clone()),
                None => self.adopt(beat, info, now, &known, &mut stop),
            }
        }
        self.forget_missing(beat, now);
        if leaves {
            self.recall_leaving_of(&beat.worker);
        }
        stop
    }

    /// Whether the heartbeat is out of date and must be ignored. Either the network delayed it and a later one came
    /// first: instances that have come to the worker since would count as gone. Or the worker has restarted since: the
    /// kernel still sends what a killed process had written.
    pub(crate) fn is_late(&self, beat: &Heartbeat) -> bool {
        let is_late = |w: &Worker| w.incarnation == beat.incarnation && beat.number != 0 && beat.number <= w.number;
        let is_of_before = |w: &Worker| w.ended.contains(&beat.incarnation);
        let worker = self.workers.get(&beat.worker);
        worker.is_some_and(|w| is_late(w) || is_of_before(w))
    }

    pub(super) fn forget_all_of(&mut self, worker: &rekindle_wire::WorkerId, now: Millis) {
        let ids: Vec<_> = self.instances.on(worker).map(|(id, _)| id.clone()).collect();
        for id in ids {
            // It may run on the worker that it was moving to, which is to report it.
            let has_left = self.instances.get(&id).is_some_and(Instance::has_begun_to_move);
            match has_left {
                true => drop(self.instances.remove(&id)),
                false => drop(self.forget(&id, now)),
            }
        }
    }

    fn adopt(
        &mut self,
        beat: &Heartbeat,
        info: &InstanceInfo,
        now: Millis,
        known: &impl Fn(&FunctionId, VersionNumber) -> ClaimedVersion,
        stop: &mut Vec<InstanceId>,
    ) {
        let (version, live) = match known(&info.function, info.version) {
            ClaimedVersion::Live(version) => (version, true),
            ClaimedVersion::Older(version) => (version, false),
            ClaimedVersion::Unknown => return stop.push(info.id.clone()),
        };
        let limit = version.spec.config.max_instances as usize;
        let is_ordered = beat.tickets.contains_key(&info.id);
        let surplus = self.count(&info.function, info.version) >= limit && !self.copies.contains(&info.id);
        self.add(
            info.id.clone(),
            beat.worker.clone(),
            &version.spec,
            info.started,
            Stage::Starting,
            now,
        );
        if let Some(mut instance) = self.instances.get_mut(&info.id) {
            // Its idle time before the scheduler knew it does not count: a gateway may hold a lease on it.
            instance.draining = match (surplus, live) {
                _ if !is_ordered => Some(Draining::NotOrdered),
                (true, _) => Some(Draining::Surplus),
                (false, false) => Some(Draining::NotNamed),
                (false, true) => None,
            };
            instance.update(info, now);
        }
    }

    fn forget_missing(&mut self, beat: &Heartbeat, now: Millis) {
        let listed: HashSet<_> = beat.instances.iter().map(|i| &i.id).collect();
        let missing: Vec<_> = self
            .instances
            .on(&beat.worker)
            .filter(|(id, i)| i.moving.is_none() && !listed.contains(id))
            // A heartbeat written before the worker was asked to start the instance does not list it yet. While a
            // version is prepared, its first instance appears only after the build. The deploy itself ends that stage.
            .filter(|(_, i)| i.seen || (i.stage != Stage::Preparing && now.since(i.created_at) > UNSEEN))
            .map(|(id, _)| id.clone())
            .collect();
        for id in missing {
            self.forget(&id, now);
        }
    }
}

impl Instance {
    fn update(&mut self, info: &InstanceInfo, now: Millis) {
        self.seen = true;
        self.memory_now = info.memory_bytes;
        self.evicted_now = info.evicted_bytes;
        self.lease_number = self.lease_number.max(info.lease_number);
        // An invocation that has ended since must not keep others away.
        self.in_flight = match std::mem::take(&mut self.just_returned) {
            true => info.in_flight.min(self.in_flight),
            false => info.in_flight,
        };
        self.started = info.started;
        let worker = self.worker.clone();
        self.note_where(info, &worker);
        if self.in_flight > 0 {
            self.last_active = now;
        } else {
            let idle_since = Millis(now.0.saturating_sub(info.idle_ms));
            self.last_active = self.last_active.max(idle_since);
        }
        self.stage = match (self.stage, info.state) {
            (Stage::Preparing, _) => Stage::Preparing,
            (Stage::Moving, _) if self.moving.is_some() => Stage::Moving,
            (_, InstanceState::Moving) => Stage::Moving,
            (Stage::Stopping, _) | (_, InstanceState::Stopping) => Stage::Stopping,
            // A gateway that holds its lease may use it at any moment.
            (_, InstanceState::Parked) if self.lease.is_some() => Stage::Ready,
            (_, InstanceState::Parked) => Stage::Parked,
            // The gateway may have seen the first response before the worker wrote this heartbeat.
            (Stage::Ready, InstanceState::Starting) | (_, InstanceState::Ready) => Stage::Ready,
            (_, InstanceState::Starting) => Stage::Starting,
            (_, InstanceState::Capturing) => Stage::Capturing,
        };
    }

    /// Notes, of one that is moving, that it runs on this worker.
    fn note_where(&mut self, info: &InstanceInfo, worker: &WorkerId) {
        let runs = matches!(info.state, InstanceState::Ready | InstanceState::Parked);
        if let Some(moving) = self.moving.as_mut().filter(|_| runs) {
            moving.runs_on = Some(worker.clone());
        }
    }
}
