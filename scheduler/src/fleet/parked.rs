//! The pools of parked instances: how many of a version there are, and when the next is to be started.

use std::collections::HashMap;

use rekindle_wire::{FunctionName, VersionNumber};

use super::{Fleet, LiveVersion, Millis, Stage};

/// Between two starts for one pool, at least; twice as long after each that brought nothing, up to the second.
const PAUSE: Millis = Millis(100);
const PAUSE_MAX: Millis = Millis(60_000);

impl Fleet {
    /// Instances of a version that are parked, or were started to be.
    pub(crate) fn pooled(&self, live: &LiveVersion) -> usize {
        let spec = &live.spec;
        let of_version = |i: &&super::Instance| i.function == spec.function && i.version == spec.version && !i.draining;
        let pooled = self.instances.values().filter(of_version);
        pooled.filter(|i| i.stage == Stage::Parked || i.to_park).count()
    }
}

/// When pools may start their next.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    next: HashMap<(FunctionName, VersionNumber), Next>,
}

#[derive(Debug, Clone, Copy)]
struct Next {
    at: Millis,
    pause: Millis,
    pooled: usize,
}

impl Pools {
    /// Whether the version's pool, which has `pooled` and lacks some, may start one now. Counts as started then.
    pub(crate) fn may_start(&mut self, live: &LiveVersion, pooled: usize, now: Millis) -> bool {
        let key = (live.spec.function.clone(), live.spec.version);
        let next = self.next.entry(key).or_insert(Next {
            at: now,
            pause: PAUSE,
            pooled,
        });
        if now < next.at {
            return false;
        }
        // It has as many as when the last one was started, and that one: so that start brought something.
        let brought = pooled > next.pooled;
        let pause = match brought {
            true => PAUSE,
            false => Millis(next.pause.0.saturating_mul(2)).min(PAUSE_MAX),
        };
        *next = Next {
            at: now.plus(pause),
            pause,
            pooled,
        };
        true
    }

    /// Forgets versions that are not live any more.
    pub(crate) fn keep(&mut self, is_live: impl Fn(&FunctionName, VersionNumber) -> bool) {
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
        let starts = |pools: &mut Pools, from: u64, pooled: &dyn Fn(usize) -> usize| {
            let mut starts = 0;
            for ms in (from..from + 60_000).step_by(100) {
                starts += usize::from(pools.may_start(&hello, pooled(starts), Millis(ms)));
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
