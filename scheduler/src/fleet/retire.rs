//! Which instances shall go: idle for too long, of a version that is no longer live, or in the way of one that needs the room.

use rekindle_wire::{FunctionName, InstanceId, VersionNumber};

use super::{Fleet, Millis, Stage};

/// How long to leave an instance alone whose worker said it was busy.
const BUSY_PAUSE: Millis = Millis(500);

/// An instance to stop if its worker finds it idle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retiree {
    pub(crate) instance: InstanceId,
    pub(crate) address: String,
}

impl Fleet {
    /// Instances whose time has come; they count as stopping from now on, until [`Self::kept`] or [`Self::forget`] is called.
    pub(crate) fn due(&mut self, now: Millis) -> Vec<Retiree> {
        let due: Vec<_> = self
            .instances
            .iter()
            .filter(|(_, i)| i.is_free() && i.retire_after <= now)
            .filter(|(_, i)| i.draining || now.since(i.last_active) >= i.idle_limit)
            .map(|(id, _)| id.clone())
            .collect();
        due.into_iter().filter_map(|id| self.retire(&id)).collect()
    }

    /// Makes room: an unused instance is to be stopped at once, a leased one is recalled, and its room comes later.
    pub(crate) fn free_up(&mut self, id: &InstanceId) -> Option<Retiree> {
        let instance = self.instances.get(id)?;
        if instance.is_free() {
            self.retire(id)
        } else {
            self.recall(id);
            None
        }
    }

    fn retire(&mut self, id: &InstanceId) -> Option<Retiree> {
        let address = self.address_of(id)?;
        self.instances.get_mut(id)?.stage = Stage::Stopping;
        Some(Retiree {
            instance: id.clone(),
            address,
        })
    }

    /// It is to stop whatever it does, and counts as stopping from now on. Answers its worker's address; `None` when it is gone.
    pub(crate) fn condemn(&mut self, id: &InstanceId) -> Option<String> {
        let address = self.address_of(id)?;
        let instance = self.instances.get_mut(id)?;
        instance.stage = Stage::Stopping;
        // The worker may have it busy for good.
        instance.condemned = true;
        Some(address)
    }

    /// The worker found the instance busy, or could not be asked: it stays, for now.
    pub(crate) fn kept(&mut self, id: &InstanceId, busy: bool, now: Millis) {
        if let Some(instance) = self.instances.get_mut(id)
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

    /// A version went live: its first instance takes invocations from now on, instances of the others finish and go.
    pub(crate) fn switch_to(&mut self, function: &FunctionName, live: VersionNumber, now: Millis) {
        for instance in self.instances.values_mut() {
            if instance.function != *function {
                continue;
            }
            if instance.version == live {
                if instance.stage == Stage::Preparing {
                    instance.stage = Stage::Ready;
                    instance.last_active = now;
                }
            } else if instance.version < live {
                instance.draining = true;
                if let Some(lease) = &mut instance.lease {
                    lease.recalled = true;
                }
            }
        }
    }
}
