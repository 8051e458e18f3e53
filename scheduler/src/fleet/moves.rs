//! Instances that move to another worker.

use rekindle_wire::migration::MigrationKind;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, VersionNumber, WorkerId};

use super::membership::Worker;
use super::sites::Site;
use super::{Draining, Fleet, Instance, Stage};
use crate::clock::Millis;

/// Instances used within this time before their worker began to drain move to others.
const HOT: Millis = Millis(10_000);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    /// Migration target.
    pub(crate) to: WorkerId,
    /// When invocations stopped being sent to it; `None` while both sides only prepare.
    pub(crate) since: Option<Millis>,
    /// The worker that last reported it as running.
    pub(crate) runs_on: Option<WorkerId>,
}

/// Where an instance runs whose move has an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Neither worker has reported it yet.
    Unknown,
    Source,
    Target,
    /// It is known no more.
    Gone,
}

/// A move that can begin.
#[derive(Debug)]
pub(crate) struct PlannedMove {
    pub(crate) instance: InstanceId,
    pub(crate) from: WorkerId,
    pub(crate) from_address: String,
    pub(crate) to: WorkerId,
    pub(crate) to_address: String,
    pub(crate) id_at_target: InstanceId,
    pub(crate) function: FunctionId,
    pub(crate) version: VersionNumber,
}

fn conflict(message: String) -> ApiError {
    ApiError::new(ErrorCode::Conflict, message)
}

impl Fleet {
    /// Checks whether an instance may move, and chooses the target: the named worker, or the one with most room. Room
    /// on the target is set aside from now on, until [`Self::moved`] or [`Self::stays`]. A copy is expected from now
    /// on, until [`Self::moved`] or [`Self::give_up_copy`].
    pub(crate) fn plan_move(
        &mut self,
        id: &InstanceId,
        to: Option<&WorkerId>,
        kind: &MigrationKind,
    ) -> Result<PlannedMove, ApiError> {
        let unknown = || {
            ApiError::new(
                ErrorCode::NotFound,
                format!("no instance {id} is running: `fn instances` lists them"),
            )
        };
        let instance = self.instances.get(id).ok_or_else(unknown)?;
        if instance.moving.is_some() {
            return Err(conflict(format!("{id} is moving already")));
        }
        if !matches!(instance.stage, Stage::Ready | Stage::Parked) || instance.condemned {
            return Err(conflict(format!(
                "{id} is {}, and cannot move now",
                instance.stage.as_str()
            )));
        }
        let target = self.target(id, instance.memory, &instance.worker, to)?;
        let from = instance.worker.clone();
        let address = |worker: &WorkerId| self.workers.get(worker).map(|w| w.address.clone());
        let (Some(from_address), Some(to_address)) = (address(&from), address(&target)) else {
            return Err(unknown());
        };
        let id_at_target = match kind {
            MigrationKind::Move => id.clone(),
            MigrationKind::Clone(copy) => copy.clone(),
        };
        let (function, version) = (instance.function.clone(), instance.version);
        match kind {
            MigrationKind::Move => {
                if let Some(mut instance) = self.instances.get_mut(id) {
                    instance.moving = Some(Move {
                        to: target.clone(),
                        since: None,
                        runs_on: None,
                    });
                }
            }
            MigrationKind::Clone(copy) => drop(self.copies.insert(copy.clone())),
        }
        Ok(PlannedMove {
            instance: id.clone(),
            from,
            from_address,
            to: target,
            to_address,
            id_at_target,
            function,
            version,
        })
    }

    fn target(&self, id: &InstanceId, need: u64, from: &WorkerId, to: Option<&WorkerId>) -> Result<WorkerId, ApiError> {
        let sites = self.instances.sites();
        let sets = |worker| {
            let facts = sites.get(worker).and_then(|site| site.facts.as_ref());
            facts.map(|f| f.instruction_sets).unwrap_or_default()
        };
        // Its processes chose their code paths by the instruction sets of their worker, or of an earlier worker with
        // fewer.
        let lacks = |worker| sets(worker).lacks(sets(from));
        let Some(to) = to else {
            let mut with_room = sites.by_room().take_while(|(room, _)| *room >= need);
            let roomiest = with_room.find(|(_, worker)| *worker != from && lacks(worker).is_empty());
            let none = || {
                let message = format!(
                    "no other worker takes {id}: none has the room and its processor's instructions, is connected \
                     and is not drained; see `fn workers`, and add one"
                );
                ApiError::new(ErrorCode::NoCapacity, message)
            };
            return roomiest.map(|(_, worker)| worker.clone()).ok_or_else(none);
        };
        if !self.workers.get(to).is_some_and(Worker::takes_new) {
            return Err(conflict(format!(
                "worker {to} takes nothing new: `fn workers` says why"
            )));
        }
        if to == from {
            return Err(conflict(format!("{id} is on worker {to} already")));
        }
        let lacking = lacks(to);
        if !lacking.is_empty() {
            return Err(conflict(format!(
                "the processor of worker {to} lacks {lacking}, which {id} may use: name another worker"
            )));
        }
        if sites.get(to).map_or(0, Site::room) < need {
            let message =
                format!("worker {to} has no room for {id}: move or stop others there, or name another worker");
            return Err(ApiError::new(ErrorCode::NoCapacity, message));
        }
        Ok(to.clone())
    }

    /// Stops sending invocations to the instance and recalls its lease. Returns whether it is still there to move.
    pub(crate) fn begin_move(&mut self, id: &InstanceId, now: Millis) -> bool {
        let Some(mut instance) = self.instances.get_mut(id) else {
            return false;
        };
        let instance = &mut *instance;
        let may = matches!(instance.stage, Stage::Ready | Stage::Parked);
        if let (true, Some(moving)) = (may, &mut instance.moving) {
            moving.since = Some(now);
            instance.stage = Stage::Moving;
            if let Some(lease) = &mut instance.lease {
                lease.recall_for_now();
            }
            return true;
        }
        false
    }

    /// Waits to hear anew which worker runs a moving instance.
    pub(crate) fn ask_where(&mut self, id: &InstanceId) {
        if let Some(mut instance) = self.instances.get_mut(id)
            && let Some(moving) = &mut instance.moving
        {
            moving.runs_on = None;
        }
    }

    /// Where a moving instance runs, by the heartbeats since [`Self::ask_where`].
    pub(crate) fn whereabouts(&self, id: &InstanceId) -> Whereabouts {
        let Some(instance) = self.instances.get(id) else {
            return Whereabouts::Gone;
        };
        let moving = instance.moving.as_ref();
        match moving.and_then(|moving| moving.runs_on.as_ref()) {
            None => Whereabouts::Unknown,
            Some(worker) if *worker == instance.worker => Whereabouts::Source,
            Some(_) => Whereabouts::Target,
        }
    }

    /// Number of instances that are moving or preparing to.
    pub(crate) fn moving(&self) -> usize {
        self.instances.moving()
    }

    /// Whether a gateway holds its lease.
    pub(crate) fn is_leased(&self, id: &InstanceId) -> bool {
        self.instances.get(id).is_some_and(|i| i.lease.is_some())
    }

    /// Records that the target now has the instance, or a copy of it.
    pub(crate) fn moved(&mut self, id: &InstanceId, kind: &MigrationKind, to: &WorkerId, now: Millis) {
        match kind {
            MigrationKind::Move => {
                self.instances.relocate(id, to);
                if let Some(mut instance) = self.instances.get_mut(id) {
                    instance.moving = None;
                    instance.left_behind = false;
                    instance.lease = None;
                    (instance.in_flight, instance.just_returned) = (0, false);
                    instance.evicted_now = 0;
                    // A heartbeat of its new worker that was already in flight does not list it yet.
                    (instance.created_at, instance.last_active, instance.seen) = (now, now, false);
                    if instance.stage == Stage::Moving {
                        instance.stage = Stage::Ready;
                    }
                }
            }
            MigrationKind::Clone(copy) => {
                self.copies.remove(copy);
                if let Some(original) = self.instances.get(id) {
                    let mut instance = original.clone();
                    instance.worker = to.clone();
                    instance.lease = None;
                    (instance.in_flight, instance.just_returned) = (0, false);
                    instance.stage = Stage::Ready;
                    (instance.created_at, instance.last_active, instance.seen) = (now, now, false);
                    if !self.instances.contains_key(copy) {
                        self.instances.insert(copy.clone(), instance);
                    }
                    if let Some(mut copy) = self.instances.get_mut(copy) {
                        copy.draining.take_if(|why| *why == Draining::NotOrdered);
                    }
                }
            }
        }
    }

    /// Records that the instance did not move and continues where it was, under the lease that it had.
    pub(crate) fn stays(&mut self, id: &InstanceId, now: Millis) {
        if let Some(mut instance) = self.instances.get_mut(id) {
            instance.moving = None;
            if instance.stage == Stage::Moving {
                instance.stage = Stage::Ready;
                instance.last_active = now;
            }
        }
        self.leave_behind(id);
        self.take_back(id);
    }

    /// Records that nobody is told of this copy. If it is there all the same, it counts among the `max` of its version.
    pub(crate) fn give_up_copy(&mut self, copy: &InstanceId, max: usize, now: Millis) {
        self.copies.remove(copy);
        self.end_surplus(copy, max, now);
    }

    /// Records that the instance cannot move now. On a draining worker it does not count among its version's any more,
    /// and takes nothing new.
    pub(crate) fn leave_behind(&mut self, id: &InstanceId) {
        if self.instances.get(id).is_some_and(|i| self.is_draining(&i.worker)) {
            if let Some(mut instance) = self.instances.get_mut(id) {
                instance.left_behind = true;
            }
            self.recall_for_now(id);
        }
    }

    pub(super) fn is_draining(&self, worker: &WorkerId) -> bool {
        let facts = self.instances.sites().get(worker).and_then(|site| site.facts.as_ref());
        facts.is_some_and(|f| f.is_draining)
    }

    /// Has an instance that has moved finish and go if its version has more than `max` by now: another was started in
    /// place of it.
    pub(crate) fn end_surplus(&mut self, id: &InstanceId, max: usize, now: Millis) {
        let is_surplus = |i: &Instance| {
            let all = self.instances.of_version(&i.function, i.version);
            all.is_some_and(|all| self.counted(all, now) > max)
        };
        if self.instances.get(id).is_some_and(is_surplus)
            && let Some(mut instance) = self.instances.get_mut(id)
        {
            instance.draining.get_or_insert(Draining::Surplus);
        }
    }

    /// Whether the instance is on a draining worker, was in use when that began to drain, and has yet to move off.
    /// Until its turn comes it takes invocations as before.
    pub(crate) fn awaits_its_move(&self, instance: &Instance) -> bool {
        let worker = self.workers.get(&instance.worker).filter(|w| w.alive);
        let may_move = instance.stage == Stage::Ready
            && instance.draining.is_none()
            && !instance.condemned
            && !instance.left_behind;
        let is_wanted = |since| instance.moving.is_some() || instance.is_in_use(since);
        may_move && worker.and_then(|w| w.draining_since).is_some_and(is_wanted)
    }

    /// Instances on draining workers that could move now: at most `at_once` for each worker. One that was left behind
    /// is tried again while it is in use, and not before its next attempt is due.
    pub(crate) fn to_evacuate(&self, at_once: usize, now: Millis) -> Vec<InstanceId> {
        let mut found = Vec::new();
        for (worker, _) in self.workers.iter().filter(|(_, w)| w.alive && w.is_draining()) {
            let here = || self.instances.on(worker);
            let moving = here().filter(|(_, i)| i.moving.is_some()).count();
            let may_again = |i: &Instance| {
                let may_move = i.stage == Stage::Ready && i.draining.is_none() && !i.condemned;
                i.left_behind && may_move && i.is_in_use(now) && i.move_after <= now
            };
            let may_move = |i: &Instance| i.moving.is_none() && (self.awaits_its_move(i) || may_again(i));
            let wanted = here().filter(|(_, i)| may_move(i));
            found.extend(wanted.map(|(id, _)| id.clone()).take(at_once.saturating_sub(moving)));
        }
        found
    }

    /// Keeps the platform from moving the instance before `until`.
    pub(crate) fn leave_alone(&mut self, id: &InstanceId, until: Millis) {
        if let Some(mut instance) = self.instances.get_mut(id) {
            instance.move_after = until;
        }
    }
}

impl Instance {
    /// Whether the instance serves something, is leased, or was in use shortly before `at`.
    fn is_in_use(&self, at: Millis) -> bool {
        self.in_flight > 0 || self.lease.is_some() || at.since(self.last_active) < HOT
    }
}

#[cfg(test)]
mod tests;
