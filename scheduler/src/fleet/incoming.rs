//! Who waits for an instance that moves to another worker, and for how long.
//!
//! An invocation waits for what is on its way, instead of starting another: what the function keeps in memory would be
//! in two places then. An ask is for one instance, so each instance on its way has room for one ask.
//!
//! ```text
//! 0 s        1 s                       3 s                                   8 s
//! ├─ all wait ┼─ as many as are on their way, while they still serve ┤        │
//!             └─ as many as are on their way, once nothing is in flight ──────┤
//! ```

use super::instances::VersionInstances;
use super::{Fleet, Instance, Stage};
use crate::catalog::LiveVersion;
use crate::clock::Millis;

/// For so long all asks wait for what is on its way.
pub(crate) const ALL_WAIT: Millis = Millis(1_000);

/// How long a moving instance is waited for once it serves nothing. A gateway's ask waits ten seconds, so there is time
/// left to start another.
pub(crate) const ARRIVES_WITHIN: Millis = Millis(8_000);

/// How long a moving instance is waited for while it still serves something, which may never end. After that it no
/// longer counts among its version's either if it leaves a draining worker.
pub(crate) const SETTLES_WITHIN: Millis = Millis(3_000);

impl Fleet {
    /// Whether an ask should wait for an instance that is on its way, behind `ahead` others that do.
    pub(crate) fn is_worth_waiting_for(&self, live: &LiveVersion, ahead: usize, now: Millis) -> bool {
        let all = self.instances.of_version(&live.spec.function, live.spec.version);
        let moving = self.instances.named(all.into_iter().flat_map(|all| &all.moving));
        let mut room = 0;
        for waited in moving.filter_map(|(_, i)| i.waited_for(now)) {
            if waited < ALL_WAIT {
                return true;
            }
            room += 1;
        }
        ahead < room
    }

    /// Whether an instance of the version is on its way.
    pub(crate) fn moves_some_of(&self, live: &LiveVersion) -> bool {
        let all = self.instances.of_version(&live.spec.function, live.spec.version);
        all.is_some_and(|all| !all.moving.is_empty())
    }

    /// Number of a version's instances that count against its maximum. Those that cannot leave a draining worker take
    /// nothing new and go when they have finished, like those of a version that was replaced.
    pub(crate) fn counted(&self, all: &VersionInstances, now: Millis) -> usize {
        if !all.workers.values().any(|(worker, _)| self.is_draining(worker)) {
            return all.ids.len();
        }
        self.counted_of(all, now, |_| true)
    }

    /// Their number once those being stopped have gone.
    pub(crate) fn counted_later(&self, all: &VersionInstances, now: Millis) -> usize {
        self.counted_of(all, now, |instance| instance.stage != Stage::Stopping)
    }

    fn counted_of(&self, all: &VersionInstances, now: Millis, which: impl Fn(&Instance) -> bool) -> usize {
        let stays = |i: &Instance| {
            let since = i.moving.as_ref().and_then(|m| m.since);
            i.left_behind || (i.may_serve() && since.is_some_and(|since| now.since(since) > SETTLES_WITHIN))
        };
        let there = self.instances.named(&all.ids);
        there
            .filter(|(_, i)| which(i) && !(self.is_draining(&i.worker) && stays(i)))
            .count()
    }
}

impl Instance {
    /// Whether something may be in flight, as far as is known: a gateway returns a lease once nothing is.
    fn may_serve(&self) -> bool {
        self.lease.is_some() || self.in_flight > 0
    }

    /// For how long it has been on its way. `None` if it is not, or is no longer waited for.
    fn waited_for(&self, now: Millis) -> Option<Millis> {
        let since = self.moving.as_ref().and_then(|m| m.since)?;
        let limit = if self.may_serve() {
            SETTLES_WITHIN
        } else {
            ARRIVES_WITHIN
        };
        let waited = now.since(since);
        (self.draining.is_none() && waited < limit).then_some(waited)
    }
}

#[cfg(test)]
mod tests;
