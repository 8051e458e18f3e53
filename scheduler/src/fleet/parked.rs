//! Instances that stand by: how many a version has, and when the next is started ahead.

use std::collections::HashMap;

use rekindle_wire::api::StartKind;
use rekindle_wire::{FunctionId, InstanceId, VersionNumber, WorkerId};

use super::keeping::EarlyStartReason;
use super::{Fleet, Stage};
use crate::catalog::LiveVersion;
use crate::clock::Millis;

/// Minimum pause between two starts for one pool. It doubles after each start that had no effect, up to `PAUSE_MAX`.
const PAUSE: Millis = Millis(100);
const PAUSE_MAX: Millis = Millis(60_000);

impl Fleet {
    /// Adds an instance that a worker is about to be asked for, though no request waits for it.
    pub(crate) fn add_ahead(
        &mut self,
        worker: WorkerId,
        live: &LiveVersion,
        kind: StartKind,
        why: EarlyStartReason,
        park: bool,
        now: Millis,
    ) -> InstanceId {
        let id = InstanceId::generate();
        self.add(id.clone(), worker, &live.spec, kind, Stage::Starting, now);
        if let Some(mut instance) = self.instances.get_mut(&id) {
            instance.to_park = park;
            instance.keeping.ahead = Some(why);
        }
        id
    }

    /// Number of instances of a version that are ready, in use or not, or soon will be.
    pub(crate) fn warm(&self, live: &LiveVersion) -> usize {
        self.staying(live)
            .filter(|i| {
                matches!(
                    i.stage,
                    Stage::Ready | Stage::Starting | Stage::Capturing | Stage::Moving
                ) && !i.to_park
            })
            .count()
    }

    /// Whether a version has an instance that can take a call, now or soon.
    pub(crate) fn stands_by(&self, live: &LiveVersion) -> bool {
        self.staying(live).any(|i| i.stage != Stage::Stopping)
    }

    /// Number of instances of a version that are parked, or were started to be.
    pub(crate) fn pooled(&self, live: &LiveVersion) -> usize {
        self.staying(live)
            .filter(|i| i.stage == Stage::Parked || i.to_park)
            .count()
    }

    fn staying(&self, live: &LiveVersion) -> impl Iterator<Item = &super::Instance> {
        let of_version = self.instances.of_version(&live.spec.function, live.spec.version);
        let ids = of_version.into_iter().flat_map(|v| &v.ids);
        let of_version = self.instances.named(ids).map(|(_, i)| i);
        of_version.filter(|i| !self.is_leaving(i))
    }

    /// Counts that an instance started to be parked has become useful.
    pub(super) fn filled(&mut self, id: &InstanceId) {
        if let Some(mut instance) = self.instances.get_mut(id) {
            instance.to_park = false;
            let key = (instance.function.clone(), instance.version);
            *self.filled.entry(key).or_default() += 1;
        }
    }

    /// Forgets the counts of versions that are no longer live.
    pub(crate) fn keep_filled(&mut self, is_live: impl Fn(&FunctionId, VersionNumber) -> bool) {
        self.filled.retain(|(function, version), _| is_live(function, *version));
    }

    /// Number of a version's instances that were started to be parked and have become useful.
    pub(crate) fn filled_of(&self, live: &LiveVersion) -> u64 {
        let key = (live.spec.function.clone(), live.spec.version);
        self.filled.get(&key).copied().unwrap_or(0)
    }
}

/// When each pool may start its next instance.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    next: HashMap<(FunctionId, VersionNumber), RefillBackoff>,
}

#[derive(Debug, Clone, Copy)]
struct RefillBackoff {
    at: Millis,
    pause: Millis,
    filled: u64,
}

impl Pools {
    /// Whether the version's pool, which is short of instances, may start one now; if so, it counts as started.
    /// `filled` is the number of its starts that have become useful so far.
    pub(crate) fn may_start(&mut self, live: &LiveVersion, filled: u64, now: Millis) -> bool {
        let key = (live.spec.function.clone(), live.spec.version);
        let next = self.next.entry(key).or_insert(RefillBackoff {
            at: now,
            pause: PAUSE,
            filled,
        });
        if now < next.at {
            return false;
        }
        let pause = match filled > next.filled {
            true => PAUSE,
            false => Millis(next.pause.0.saturating_mul(2)).min(PAUSE_MAX),
        };
        *next = RefillBackoff {
            at: now.plus(pause),
            pause,
            filled,
        };
        true
    }

    /// Forgets versions that are no longer live.
    pub(crate) fn keep(&mut self, is_live: impl Fn(&FunctionId, VersionNumber) -> bool) {
        self.next.retain(|(function, version), _| is_live(function, *version));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{live, spec};

    #[test]
    fn a_pool_whose_starts_bring_nothing_starts_less_and_less_often() {
        let hello = live(spec("hello", 1, 10, 1, 5));
        let mut pools = Pools::default();
        let starts = |pools: &mut Pools, from: u64, filled: &dyn Fn(u64) -> u64| {
            let mut starts = 0;
            for ms in (from..from + 60_000).step_by(100) {
                starts += u64::from(pools.may_start(&hello, filled(starts), Millis(ms)));
            }
            starts
        };
        let vain = starts(&mut pools, 0, &|_| 0);
        assert!((5..12).contains(&vain), "{vain} in a minute");
        let good = starts(&mut Pools::default(), 0, &|starts| starts);
        assert!(good > 500, "{good} in a minute");
        pools.keep(|_, _| false);
        assert!(pools.next.is_empty());
    }
}
