//! The leases that a gateway holds on one function's instances. No I/O and no clock: the caller passes the time.
//!
//! The scheduler grants a lease. While it is used, slots are taken and released, and it is renewed. It ends in one of
//! three ways:
//!
//! - It is unused for its own length and returned.
//! - It is recalled, or must not be used any more (`closing`): nothing new is sent, and it is returned once its last
//!   slot is free. A stream may hold that for hours, so the scheduler is asked whether it has taken the recall back.
//! - Its instance is gone.
//!
//! A slot can be lost: no client waits for its invocation any more, and the function may still be working on it. It is
//! not reused while that may last. A lease with only lost slots is returned, and the worker's heartbeats tell the
//! scheduler what is free again.

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::HeaderValue;
use rekindle_wire::api::StartKind;
use rekindle_wire::ids::GatewayId;
use rekindle_wire::internal::{OVERDUE_LIMIT, Placement, ReturnedLease};
use rekindle_wire::lease::LeaseMark;
use rekindle_wire::{InstanceId, VersionNumber};

/// Time for a function to notice that its response is no longer wanted. The worker knows the state, and refuses any
/// request too many.
const LOST_FOR: Duration = Duration::from_secs(3);
/// Interval between questions whether a recall still stands.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What an invocation must know of its instance.
#[derive(Debug, Clone)]
pub(crate) struct LeasedInstance {
    pub(crate) instance: InstanceId,
    pub(crate) address: Arc<str>,
    pub(crate) version: VersionNumber,
    pub(crate) timeout: Duration,
    /// Longest duration of its boot.
    pub(crate) boot_timeout: Duration,
    /// Whether an invocation that may have reached the function may be sent again.
    pub(crate) idempotent: bool,
    /// Whether each invocation waits for another copy.
    pub(crate) fresh: bool,
    pub(crate) memory_bytes: u64,
    /// The lease's [`LeaseMark`] for its worker; `None` from a scheduler that does not number them.
    pub(crate) mark: Option<HeaderValue>,
    start: StartKind,
    answered: Arc<AtomicBool>,
}

impl LeasedInstance {
    /// How an invocation sent now starts: as its instance does, until that has answered for the first time.
    pub(crate) fn start(&self) -> StartKind {
        if self.answered.load(Ordering::Acquire) {
            StartKind::Warm
        } else {
            self.start
        }
    }

    /// Records that the instance has answered: it is warm from now on.
    pub(crate) fn note_answer(&self) {
        self.answered.store(true, Ordering::Release);
    }
}

/// How an invocation left its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Free,
    /// No client waits for the invocation any more; the function may still be working on it.
    Lost,
    /// Lost, since the invocation ran into its timeout.
    Stuck,
    /// The worker could not be reached, or says that the lease is over. As far as is known, the instance is fine.
    Unusable,
    /// The worker says that the instance does not exist any more.
    Gone,
}

#[derive(Debug)]
struct Lease {
    leased: LeasedInstance,
    /// Whether it was granted for whichever version serves.
    is_any: bool,
    number: u64,
    slots: u32,
    /// Slots in use, including lost ones.
    used: u32,
    /// Until when each lost slot is not reused.
    lost: Vec<Instant>,
    length: Duration,
    expires: Instant,
    last_used: Instant,
    /// It is not used any more, whatever the scheduler says.
    closing: bool,
    /// Since when it is recalled.
    recalled: Option<Instant>,
    /// When the scheduler was last asked about it.
    asked: Instant,
    stuck: bool,
}

impl Lease {
    fn returned(&self, now: Instant) -> ReturnedLease {
        let idle = now.saturating_duration_since(self.last_used);
        ReturnedLease {
            instance: self.leased.instance.clone(),
            served: self.leased.answered.load(Ordering::Acquire),
            idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
            stuck: self.stuck,
            busy: self.lost(),
        }
    }

    fn fits(&self, wanted: Option<VersionNumber>) -> bool {
        wanted.map_or(self.is_any, |version| self.leased.version == version)
    }

    fn lost(&self) -> u32 {
        u32::try_from(self.lost.len()).unwrap_or(u32::MAX)
    }

    fn is_unused(&self) -> bool {
        self.used <= self.lost()
    }

    /// Whether nothing new is sent to its instance.
    fn takes_nothing(&self) -> bool {
        self.closing || self.recalled.is_some()
    }

    /// Frees lost slots whose invocations must have ended.
    fn regain(&mut self, now: Instant) {
        let before = self.lost();
        self.lost.retain(|until| *until > now);
        self.used = self.used.saturating_sub(before - self.lost());
    }
}

fn mark(number: u64, gateway: &GatewayId) -> Option<HeaderValue> {
    let gateway = gateway.clone();
    let mark = (number > 0).then(|| LeaseMark { number, gateway }.to_string())?;
    // A number and an id are always a valid header.
    HeaderValue::from_str(&mark).ok()
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: Vec<Lease>,
}

impl Leases {
    /// Adds a granted lease, or renews it if it is already held.
    /// `wanted` is the version that was asked for, `None` for whichever serves.
    pub(crate) fn add(
        &mut self,
        placement: &Placement,
        wanted: Option<VersionNumber>,
        gateway: &GatewayId,
        now: Instant,
    ) {
        let length = Duration::from_millis(placement.lease_ms);
        let expires = now + length;
        let mark = mark(placement.lease_number, gateway);
        if let Some(known) = self.find(&placement.instance) {
            known.expires = expires;
            (known.closing, known.recalled) = (false, None);
            known.number = placement.lease_number;
            known.leased.mark = mark;
            return;
        }
        let answered = placement.start == StartKind::Warm;
        self.leases.push(Lease {
            leased: LeasedInstance {
                instance: placement.instance.clone(),
                address: placement.worker_address.as_str().into(),
                version: placement.version,
                timeout: Duration::from_millis(placement.timeout_ms),
                boot_timeout: Duration::from_millis(placement.boot_timeout_ms),
                idempotent: placement.idempotent,
                fresh: placement.fresh,
                memory_bytes: placement.memory_bytes,
                mark,
                start: placement.start,
                answered: Arc::new(AtomicBool::new(answered)),
            },
            is_any: wanted.is_none(),
            number: placement.lease_number,
            slots: placement.slots.max(1),
            used: 0,
            lost: Vec::new(),
            length,
            expires,
            last_used: now,
            closing: false,
            recalled: None,
            asked: now,
            stuck: false,
        });
    }

    /// Takes a slot of the oldest instance, so that the others can become idle. What the function keeps in memory is
    /// in one place so: one that was started at a peak, or while the oldest moved, takes over none. With `confirmed`,
    /// only of a lease that the scheduler has granted or renewed for this moment. `wanted` is the version, `None` for
    /// one that the scheduler chose.
    pub(crate) fn take(
        &mut self,
        wanted: Option<VersionNumber>,
        now: Instant,
        confirmed: bool,
    ) -> Option<LeasedInstance> {
        self.leases.iter_mut().for_each(|l| l.regain(now));
        let lease = self
            .leases
            .iter_mut()
            .filter(|l| l.fits(wanted))
            .filter(|l| !l.takes_nothing() && l.used < l.slots && (l.expires > now || !confirmed))
            .min_by(|a, b| a.leased.instance.cmp(&b.leased.instance))?;
        lease.used += 1;
        lease.last_used = now;
        Some(lease.leased.clone())
    }

    /// Whether an instance serves what is asked for, now or when one of its slots becomes free.
    pub(crate) fn serve(&self, wanted: Option<VersionNumber>) -> bool {
        self.leases.iter().any(|l| l.fits(wanted) && !l.takes_nothing())
    }

    /// Takes a slot of one instance, and closes the lease to all other invocations.
    pub(crate) fn take_alone(&mut self, instance: &InstanceId, now: Instant) -> Option<LeasedInstance> {
        let lease = self.find(instance)?;
        lease.closing = true;
        lease.used += 1;
        lease.last_used = now;
        Some(lease.leased.clone())
    }

    /// Releases a slot. Returns whether the lease can be returned at once.
    pub(crate) fn release(&mut self, instance: &InstanceId, outcome: Outcome, now: Instant) -> bool {
        let Some(lease) = self.find(instance) else {
            return false;
        };
        lease.last_used = now;
        match outcome {
            Outcome::Free => lease.used = lease.used.saturating_sub(1),
            Outcome::Lost | Outcome::Stuck => {
                let going_on = if outcome == Outcome::Stuck {
                    OVERDUE_LIMIT
                } else {
                    LOST_FOR
                };
                lease.lost.push(now + going_on);
                // With several slots the others may still be good.
                lease.stuck |= outcome == Outcome::Stuck && lease.slots == 1;
                lease.closing |= lease.lost() >= lease.slots;
            }
            Outcome::Unusable => {
                lease.used = lease.used.saturating_sub(1);
                lease.closing = true;
            }
            Outcome::Gone => {
                self.leases.retain(|l| l.leased.instance != *instance);
                return false;
            }
        }
        lease.takes_nothing() && lease.is_unused()
    }

    /// Whether the same instance is leased at another worker by now.
    pub(crate) fn is_elsewhere(&self, leased: &LeasedInstance) -> bool {
        let mut same = self.leases.iter().map(|l| &l.leased);
        same.any(|now| now.instance == leased.instance && now.address != leased.address)
    }

    /// Stops sending to an instance whose lease is recalled. Returns whether the lease is held here.
    pub(crate) fn recall(&mut self, instance: &InstanceId, now: Instant) -> bool {
        self.find(instance).map(|l| l.recalled = Some(now)).is_some()
    }

    /// Stops sending to instances of the worker at this address.
    pub(crate) fn close_at(&mut self, address: &str) {
        let there = self.leases.iter_mut().filter(|l| *l.leased.address == *address);
        there.for_each(|l| l.closing = true);
    }

    /// Stops sending to any of the instances.
    pub(crate) fn close_all(&mut self) {
        self.leases.iter_mut().for_each(|l| l.closing = true);
    }

    /// Removes the leases to be returned: closing ones without a user, and those unused for a lease's length.
    pub(crate) fn give_back(&mut self, now: Instant) -> Vec<ReturnedLease> {
        let mut back = Vec::new();
        self.leases.retain(|l| {
            let unused = now.saturating_duration_since(l.last_used) >= l.length;
            let over = l.is_unused() && (l.takes_nothing() || unused);
            if over {
                back.push(l.returned(now));
            }
            !over
        });
        back
    }

    /// Leases that have used up half their length, and are due for renewal, and recalled ones from time to time.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(InstanceId, u64)> {
        let mut due = Vec::new();
        for lease in &mut self.leases {
            let is_old = lease.expires.saturating_duration_since(now) <= lease.length / 2;
            let is_open = lease.recalled.is_some() && now.saturating_duration_since(lease.asked) >= ASK_AGAIN;
            if is_old || is_open {
                lease.asked = now;
                due.push((lease.leased.instance.clone(), lease.number));
            }
        }
        due
    }

    /// Renews a lease that the scheduler confirmed, as of `asked`. Returns whether it is held here. A recall that came
    /// before the scheduler was asked is taken back.
    pub(crate) fn confirm(&mut self, instance: &InstanceId, asked: Instant) -> bool {
        let Some(lease) = self.find(instance) else { return false };
        lease.expires = asked + lease.length;
        lease.recalled.take_if(|recalled| *recalled < asked);
        true
    }

    /// The leased instances that an ask for this version must name.
    pub(crate) fn held(&self, wanted: Option<VersionNumber>) -> Vec<InstanceId> {
        let may_be = |l: &&Lease| wanted.is_none_or(|version| l.leased.version == version);
        self.leases
            .iter()
            .filter(may_be)
            .map(|l| l.leased.instance.clone())
            .collect()
    }

    /// Number of leases, of their slots, and of slots in use.
    pub(crate) fn levels(&self) -> (usize, u32, u32) {
        let sum = |of: fn(&Lease) -> u32| self.leases.iter().map(of).sum();
        (self.leases.len(), sum(|l| l.slots), sum(|l| l.used))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn find(&mut self, instance: &InstanceId) -> Option<&mut Lease> {
        self.leases.iter_mut().find(|l| l.leased.instance == *instance)
    }
}
