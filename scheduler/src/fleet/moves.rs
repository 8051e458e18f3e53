//! Instances that move to another worker.

use rekindle_wire::migration::MigrationKind;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, VersionNumber, WorkerId};

use super::membership::Worker;
use super::sites::Site;
use super::{Fleet, Instance, Stage};
use crate::catalog::LiveVersion;
use crate::clock::Millis;

/// How long invocations wait for a moving instance before another is started instead.
pub(crate) const WORTH_WAITING: Millis = Millis(1_000);

/// The move of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    /// Migration target.
    pub(crate) to: WorkerId,
    /// When invocations stopped being sent to it; `None` while both sides only prepare.
    pub(crate) since: Option<Millis>,
}

/// A move that can begin.
#[derive(Debug)]
pub(crate) struct PlannedMove {
    pub(crate) instance: InstanceId,
    pub(crate) from: WorkerId,
    pub(crate) from_address: String,
    pub(crate) to: WorkerId,
    pub(crate) to_address: String,
    /// Its id on the target.
    pub(crate) arrives: InstanceId,
    /// The function it runs.
    pub(crate) function: FunctionId,
    /// Version of the function.
    pub(crate) version: VersionNumber,
}

fn conflict(message: String) -> ApiError {
    ApiError::new(ErrorCode::Conflict, message)
}

impl Fleet {
    /// Checks whether an instance may move, and chooses the target: the named worker, or the one with most room. Room
    /// on the target is set aside from now on, until [`Self::moved`] or [`Self::stays`].
    pub(crate) fn plan_move(
        &mut self,
        id: &InstanceId,
        to: Option<&WorkerId>,
        way: &MigrationKind,
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
        let arrives = match way {
            MigrationKind::Move => id.clone(),
            MigrationKind::Clone(copy) => copy.clone(),
        };
        let (function, version) = (instance.function.clone(), instance.version);
        if *way == MigrationKind::Move
            && let Some(mut instance) = self.instances.get_mut(id)
        {
            instance.moving = Some(Move {
                to: target.clone(),
                since: None,
            });
        }
        Ok(PlannedMove {
            instance: id.clone(),
            from,
            from_address,
            to: target,
            to_address,
            arrives,
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

    /// Number of instances that are moving or preparing to.
    pub(crate) fn moving(&self) -> usize {
        self.instances.moving()
    }

    /// Whether a gateway holds its lease.
    pub(crate) fn is_leased(&self, id: &InstanceId) -> bool {
        self.instances.get(id).is_some_and(|i| i.lease.is_some())
    }

    /// Records that the target now has the instance, or a copy of it.
    pub(crate) fn moved(&mut self, id: &InstanceId, way: &MigrationKind, to: &WorkerId, now: Millis) {
        match way {
            MigrationKind::Move => {
                self.instances.relocate(id, to);
                if let Some(mut instance) = self.instances.get_mut(id) {
                    instance.moving = None;
                    instance.lease = None;
                    instance.in_flight = 0;
                    instance.evicted_now = 0;
                    // A heartbeat of its new worker that was already in flight does not list it yet.
                    (instance.created_at, instance.last_active, instance.seen) = (now, now, false);
                    if instance.stage == Stage::Moving {
                        instance.stage = Stage::Ready;
                    }
                }
            }
            MigrationKind::Clone(copy) => {
                if let Some(original) = self.instances.get(id) {
                    let mut instance = original.clone();
                    instance.worker = to.clone();
                    instance.lease = None;
                    instance.in_flight = 0;
                    instance.stage = Stage::Ready;
                    (instance.created_at, instance.last_active, instance.seen) = (now, now, false);
                    if !self.instances.contains_key(copy) {
                        self.instances.insert(copy.clone(), instance);
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
        self.take_back(id);
    }

    /// Instances in use on draining workers that could move now: at most `at_once` for each worker, and none before its
    /// next attempt is due.
    pub(crate) fn to_evacuate(&self, at_once: usize, hot: Millis, now: Millis) -> Vec<InstanceId> {
        let mut found = Vec::new();
        for (worker, _) in self.workers.iter().filter(|(_, w)| w.alive && w.is_draining()) {
            let here = || self.instances.on(worker);
            let moving = here().filter(|(_, i)| i.moving.is_some()).count();
            let may_move =
                |i: &Instance| i.stage == Stage::Ready && i.moving.is_none() && i.draining.is_none() && !i.condemned;
            let in_use = |i: &Instance| i.in_flight > 0 || i.lease.is_some() || now.since(i.last_active) < hot;
            let wanted = here().filter(|(_, i)| may_move(i) && in_use(i) && i.move_after <= now);
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

    /// Whether an instance of the version will arrive elsewhere soon enough to be worth waiting for.
    pub(crate) fn is_worth_waiting_for(&self, live: &LiveVersion, now: Millis) -> bool {
        let spec = &live.spec;
        let moving = self
            .instances
            .of_version(&spec.function, spec.version)
            .map(|v| &v.moving);
        self.instances.named(moving.into_iter().flatten()).any(|(_, i)| {
            let since = i.moving.as_ref().and_then(|m| m.since);
            i.draining.is_none() && since.is_some_and(|since| now.since(since) < WORTH_WAITING)
        })
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::internal::LeaseReport;

    use super::*;
    use crate::catalog::Known;
    use crate::fixture::{beat, fleet, info, live, ready, spec, worker};
    use crate::placement::{Ask, Decision, place};

    fn two_workers() -> Fleet {
        let mut fleet = fleet(100);
        fleet.heartbeat(&beat(1, 1, 100, Vec::new()), Millis(0), |_, _| Known::Unknown);
        fleet
    }

    fn hello() -> super::LiveVersion {
        live(spec("hello", 1, 60, 1, 5))
    }

    fn ask() -> Ask {
        Ask {
            gateway: "g-a".parse().unwrap(),
            version: None,
            held: Vec::new(),
            force: None,
            avoid: Vec::new(),
            avoid_until: Millis(0),
        }
    }

    #[test]
    fn its_room_is_set_aside_on_both_until_it_is_there_and_invocations_wait_for_it() {
        let (hello, mut fleet) = (hello(), two_workers());
        let id = ready(&mut fleet, "i-a", &hello, Millis(1));
        let planned = fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
        assert_eq!((planned.from, &planned.to), (worker(0), &worker(1)));
        assert_eq!((fleet.reserved(&worker(0)), fleet.reserved(&worker(1))), (60, 60));
        assert!(
            !fleet.instances[&id].is_free(),
            "it would be let go while it gets ready"
        );
        assert_eq!(place(&fleet, &hello, &ask(), Millis(2)), Decision::Use(id.clone()));
        assert!(fleet.begin_move(&id, Millis(3)));
        assert!(matches!(
            place(&fleet, &hello, &ask(), Millis(4)),
            Decision::Wait { .. }
        ));
        // The source does not list it any more, the target already does.
        fleet.heartbeat(&beat(0, 1, 100, Vec::new()), Millis(5), |_, _| Known::Unknown);
        let listed = vec![info(&id, &hello.spec, 1, 0, 0)];
        let stop = fleet.heartbeat(&beat(1, 1, 100, listed), Millis(5), |_, _| Known::Unknown);
        assert_eq!((stop, fleet.instances[&id].stage), (Vec::new(), Stage::Moving));
        fleet.moved(&id, &MigrationKind::Move, &worker(1), Millis(6));
        assert_eq!((fleet.reserved(&worker(0)), fleet.reserved(&worker(1))), (0, 60));
        assert_eq!(place(&fleet, &hello, &ask(), Millis(7)), Decision::Use(id.clone()));
        // A heartbeat of the source that was already in flight.
        let late = vec![info(&id, &hello.spec, 0, 0, 0)];
        let stop = fleet.heartbeat(&beat(0, 1, 100, late), Millis(8), |_, _| Known::Unknown);
        assert_eq!(stop, std::slice::from_ref(&id));
        assert_eq!(fleet.instances[&id].worker, worker(1));
        // A heartbeat of the target, written before the instance was there.
        fleet.heartbeat(&beat(1, 1, 100, Vec::new()), Millis(9), |_, _| Known::Unknown);
        assert!(fleet.instances.contains_key(&id));
        // A delayed heartbeat does not count either, once a later one has listed the instance. A later one without it
        // does count.
        let numbered = |number: u64, listed: Vec<rekindle_wire::api::InstanceInfo>| {
            let mut beat = beat(1, 1, 100, listed);
            beat.number = number;
            beat
        };
        let there = vec![info(&id, &hello.spec, 1, 1, 9)];
        for (number, listed, is_kept) in [(8, there, true), (7, Vec::new(), true), (9, Vec::new(), false)] {
            fleet.heartbeat(&numbered(number, listed), Millis(10), |_, _| Known::Unknown);
            assert_eq!(fleet.instances.contains_key(&id), is_kept, "{number}");
        }
    }

    #[test]
    fn one_that_does_not_move_is_where_it_was_and_another_is_started_when_it_takes_long() {
        let (hello, mut fleet) = (live(spec("hello", 1, 30, 1, 5)), two_workers());
        let id = ready(&mut fleet, "i-a", &hello, Millis(1));
        fleet.plan_move(&id, Some(&worker(1)), &MigrationKind::Move).unwrap();
        assert!(fleet.begin_move(&id, Millis(2)));
        let later = Millis(3).plus(WORTH_WAITING);
        assert!(matches!(place(&fleet, &hello, &ask(), later), Decision::Start { .. }));
        fleet.stays(&id, later);
        assert_eq!(
            (fleet.reserved(&worker(1)), fleet.instances[&id].stage),
            (0, Stage::Ready)
        );
        assert_eq!(place(&fleet, &hello, &ask(), later), Decision::Use(id));
    }

    #[test]
    fn one_that_does_not_move_stays_under_its_lease() {
        let (hello, mut fleet) = (hello(), two_workers());
        let id = ready(&mut fleet, "i-a", &hello, Millis(1));
        let gateway = ask().gateway;
        fleet.grant(&id, &gateway, &hello, Millis(1));
        let held = LeaseReport {
            gateway: gateway.clone(),
            held: vec![id.clone()],
            numbers: Vec::new(),
            returned: Vec::new(),
        };
        for again in [10, 20] {
            fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
            assert!(fleet.begin_move(&id, Millis(again)));
            assert_eq!(fleet.untold_recalls(&gateway), std::slice::from_ref(&id));
            assert_eq!(fleet.report(&held, Millis(again)).0, std::slice::from_ref(&id));
            fleet.stays(&id, Millis(again + 1));
            assert!(fleet.report(&held, Millis(again + 2)).0.is_empty());
        }
        // Another reason to have it back stays.
        fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
        assert!(fleet.begin_move(&id, Millis(30)));
        fleet.recall(&id);
        fleet.stays(&id, Millis(31));
        assert_eq!(fleet.report(&held, Millis(32)).0, [id]);
    }

    #[test]
    fn what_cannot_move_is_told_why() {
        let (hello, mut fleet) = (hello(), two_workers());
        let id = ready(&mut fleet, "i-a", &hello, Millis(1));
        let mut refused = |id: &InstanceId, to: Option<usize>| {
            let to = to.map(worker);
            fleet.plan_move(id, to.as_ref(), &MigrationKind::Move).unwrap_err().code
        };
        assert_eq!(refused(&"i-b".parse().unwrap(), None), ErrorCode::NotFound);
        assert_eq!(refused(&id, Some(0)), ErrorCode::Conflict);
        assert_eq!(refused(&id, Some(7)), ErrorCode::Conflict);
        fleet.plan_move(&id, None, &MigrationKind::Move).unwrap();
        assert_eq!(
            fleet.plan_move(&id, None, &MigrationKind::Move).unwrap_err().code,
            ErrorCode::Conflict
        );
        let other = ready(&mut fleet, "i-c", &hello, Millis(1));
        let full = fleet
            .plan_move(&other, Some(&worker(1)), &MigrationKind::Move)
            .unwrap_err();
        assert_eq!(full.code, ErrorCode::NoCapacity, "{full}");
    }

    #[test]
    fn a_copy_is_an_instance_of_its_own() {
        let (hello, mut fleet) = (live(spec("hello", 1, 30, 1, 5)), two_workers());
        let id = ready(&mut fleet, "i-a", &hello, Millis(1));
        let way = MigrationKind::Clone("i-b".parse().unwrap());
        fleet.plan_move(&id, None, &way).unwrap();
        assert!(fleet.instances[&id].moving.is_none(), "the original serves on");
        fleet.moved(&id, &way, &worker(1), Millis(2));
        assert_eq!(fleet.instances.len(), 2);
        assert_eq!(fleet.instances[&"i-b".parse::<InstanceId>().unwrap()].worker, worker(1));
    }

    #[test]
    fn what_is_in_use_leaves_a_draining_worker_a_few_at_a_time_and_not_over_and_over() {
        let (hello, mut fleet) = (live(spec("hello", 1, 10, 1, 9)), two_workers());
        let hot = Millis(1_000);
        let ids: Vec<_> = (0..4)
            .map(|n| ready(&mut fleet, &format!("i-{n}"), &hello, Millis(5_000)))
            .collect();
        assert!(fleet.to_evacuate(2, hot, Millis(5_100)).is_empty(), "nobody drains");
        fleet.drain(&worker(0), true);
        let first = fleet.to_evacuate(2, hot, Millis(5_100));
        assert_eq!(first.len(), 2);
        for id in &first {
            fleet.plan_move(id, None, &MigrationKind::Move).unwrap();
        }
        assert!(
            fleet.to_evacuate(2, hot, Millis(5_100)).is_empty(),
            "as many as may are on their way"
        );
        for id in &first {
            fleet.stays(id, Millis(5_200));
        }
        for id in &ids {
            fleet.leave_alone(id, Millis(9_000));
        }
        assert!(fleet.to_evacuate(2, hot, Millis(5_300)).is_empty());
        assert!(
            fleet.to_evacuate(2, hot, Millis(9_100)).is_empty(),
            "nobody uses them any more"
        );
    }
}
