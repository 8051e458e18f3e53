//! Which instances must be parked or go: those idle for too long, of a version no longer live, or in the way of one
//! that needs the room.

use std::collections::HashMap;

use rekindle_wire::{FunctionId, InstanceId, VersionNumber};

use super::{Draining, Fleet, Instance, Stage};
use crate::clock::Millis;

/// How long an instance is left alone after its worker said it was busy.
const BUSY_PAUSE: Millis = Millis(500);

/// How long an instance started to be parked may stay ready before its worker is asked again to park it.
const PARK_AGAIN: Millis = Millis(2_000);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstanceDecision {
    /// Parked, since it was unused for its idle time.
    Parked,
    /// Retired, since it was unused for its idle time.
    LetGo,
    /// Parked to make room for another.
    ParkedForRoom,
    /// Evicted to make room for another.
    EvictedForRoom,
    /// Evicted since its worker is short of memory.
    EvictedForPressure,
    /// Takes no new invocations and goes when it has finished, since its function holds much and another holds nothing.
    Yielded,
    /// Started since a call is expected.
    Prewarmed,
    /// The expected call came.
    PrewarmUsed,
    /// The instance went before the expected call came.
    PrewarmUnused,
}

impl InstanceDecision {
    /// The decision's name in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::LetGo => "let_go",
            Self::ParkedForRoom => "parked_for_room",
            Self::EvictedForRoom => "evicted_for_room",
            Self::EvictedForPressure => "evicted_for_pressure",
            Self::Yielded => "yielded",
            Self::Prewarmed => "prewarmed",
            Self::PrewarmUsed => "prewarm_used",
            Self::PrewarmUnused => "prewarm_unused",
        }
    }
}

/// Minimum number of instances of a version that always stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    /// Minimum of ready instances.
    pub(crate) warm: usize,
    /// Minimum of parked instances.
    pub(crate) parked: usize,
}

/// An instance to stop or to park, if its worker finds it idle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retiree {
    pub(crate) instance: InstanceId,
    pub(crate) address: String,
    /// Whether it is parked instead of stopped.
    pub(crate) park: bool,
}

impl Fleet {
    /// Instances that are due. They count as stopping from now on, until [`Self::kept`], [`Self::parked`] or
    /// [`Self::forget`] is called. `floor` says how many of each version always stay.
    pub(crate) fn due(&mut self, now: Millis, floor: impl Fn(&FunctionId, VersionNumber) -> Floor) -> Vec<Retiree> {
        let mut unused: Vec<_> = self
            .instances
            .iter()
            .filter(|(_, i)| i.is_free() && i.retire_after <= now)
            .collect();
        // The longest unused goes first, so that the newest stays.
        unused.sort_by_key(|(id, i)| (i.last_active, *id));
        let mut stay = self.staying_by_version();
        let mut due = Vec::new();
        for (id, instance) in unused {
            let stay = stay.entry((&instance.function, instance.version)).or_default();
            let least = floor(&instance.function, instance.version);
            let leaving = self.is_leaving(instance);
            let ready = usize::from(instance.stage == Stage::Ready && !instance.to_park && !leaving);
            match instance.fate(now, leaving, *stay, least) {
                IdleAction::Stay => {}
                IdleAction::Park => {
                    stay.parked += 1;
                    stay.warm -= ready;
                    due.push((id.clone(), true));
                }
                IdleAction::Go => {
                    stay.parked -= usize::from(instance.stage == Stage::Parked && !leaving);
                    stay.warm -= ready;
                    due.push((id.clone(), false));
                }
            }
        }
        let decided = |(_, park): &(_, bool)| {
            if *park {
                InstanceDecision::Parked
            } else {
                InstanceDecision::LetGo
            }
        };
        self.decided.extend(due.iter().map(decided));
        due.into_iter()
            .filter_map(|(id, park)| self.retire(&id, park))
            .collect()
    }

    /// Number of ready and of parked instances for each version, without those that are leaving.
    pub(super) fn staying_by_version(&self) -> HashMap<(&FunctionId, VersionNumber), Floor> {
        let mut stay: HashMap<_, Floor> = HashMap::new();
        for instance in self.instances.values().filter(|i| !self.is_leaving(i)) {
            let stay = stay.entry((&instance.function, instance.version)).or_default();
            match instance.stage {
                Stage::Parked => stay.parked += 1,
                Stage::Ready if !instance.to_park => stay.warm += 1,
                _ => {}
            }
        }
        stay
    }

    /// Makes room: an unused instance is to be stopped at once. A leased one is recalled, and its room comes later.
    pub(crate) fn free_up(&mut self, id: &InstanceId) -> Option<Retiree> {
        let instance = self.instances.get(id)?;
        if instance.is_free() {
            self.decided.push(InstanceDecision::EvictedForRoom);
            self.retire(id, false)
        } else {
            self.recall(id);
            None
        }
    }

    pub(super) fn retire(&mut self, id: &InstanceId, park: bool) -> Option<Retiree> {
        let address = self.address_of(id)?;
        self.instances.get_mut(id)?.stage = Stage::Stopping;
        Some(Retiree {
            instance: id.clone(),
            address,
            park,
        })
    }

    /// Condemns an instance: it will stop whatever it does, and counts as stopping from now on. Returns its worker's
    /// address, or `None` if the instance is gone.
    pub(crate) fn condemn(&mut self, id: &InstanceId) -> Option<String> {
        let address = self.address_of(id)?;
        let mut instance = self.instances.get_mut(id)?;
        instance.stage = Stage::Stopping;
        // The worker may find it busy forever.
        instance.condemned = true;
        Some(address)
    }

    /// Records that the worker found the instance busy, or could not be asked: the instance stays for now.
    pub(crate) fn kept(&mut self, id: &InstanceId, busy: bool, now: Millis) {
        if let Some(mut instance) = self.instances.get_mut(id)
            && instance.stage == Stage::Stopping
            && !instance.condemned
        {
            instance.stage = Stage::Ready;
            instance.retire_after = now.plus(BUSY_PAUSE);
            if busy {
                instance.last_active = now;
            }
        }
    }

    /// Records that the worker has parked the instance.
    pub(crate) fn parked(&mut self, id: &InstanceId) {
        let fills = match self.instances.get_mut(id) {
            Some(mut instance) if instance.stage == Stage::Stopping && !instance.condemned => {
                instance.stage = Stage::Parked;
                instance.to_park
            }
            _ => false,
        };
        if fills {
            self.filled(id);
        }
    }

    /// Lets the first instance of a version that is ready take invocations.
    pub(crate) fn prepared(&mut self, function: &FunctionId, version: VersionNumber, now: Millis) {
        for id in self.instances.ids_of(function) {
            if let Some(mut instance) = self.instances.get_mut(&id)
                && instance.version == version
                && instance.stage == Stage::Preparing
            {
                instance.stage = Stage::Ready;
                instance.last_active = now;
            }
        }
    }

    /// Follows a change of a function's aliases: instances of versions that none names finish and go. Those that finish
    /// for another reason do so whatever is named.
    pub(crate) fn switch(&mut self, function: &FunctionId, is_named: impl Fn(VersionNumber) -> bool) {
        for id in self.instances.ids_of(function) {
            let Some(mut instance) = self.instances.get_mut(&id) else {
                continue;
            };
            if is_named(instance.version) {
                instance.draining.take_if(|why| *why == Draining::NotNamed);
                drop(instance);
                self.take_back(&id);
            } else if instance.stage != Stage::Preparing {
                instance.draining.get_or_insert(Draining::NotNamed);
                if let Some(lease) = &mut instance.lease {
                    lease.recall_for_now();
                }
            }
        }
    }
}

/// What happens to an unused instance.
enum IdleAction {
    Stay,
    Park,
    Go,
}

impl Instance {
    /// `stay` counts the instances of its version, itself included.
    fn fate(&self, now: Millis, leaving: bool, stay: Floor, least: Floor) -> IdleAction {
        let idle = now.since(self.last_active);
        let may_park = !self.cannot_park && (self.park_limit > Millis(0) || stay.parked < least.parked);
        match self.stage {
            _ if leaving => IdleAction::Go,
            Stage::Parked if stay.parked > least.parked && idle >= self.idle_limit.plus(self.park_limit) => {
                IdleAction::Go
            }
            Stage::Ready if self.to_park && may_park && idle >= PARK_AGAIN => IdleAction::Park,
            Stage::Ready if (self.to_park || stay.warm > least.warm) && idle >= self.idle_limit => match may_park {
                true => IdleAction::Park,
                false => IdleAction::Go,
            },
            _ => IdleAction::Stay,
        }
    }
}
