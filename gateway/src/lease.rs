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
    /// Its memory limit in bytes.
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
    /// The slot is free.
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

/// All leases on one function.
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

    /// Takes a slot, of the instance used last, so that the others can become idle. With `confirmed`, only of a lease
    /// that the scheduler has granted or renewed for this moment. `wanted` is the version, `None` for one that the
    /// scheduler chose.
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
            .max_by_key(|l| l.last_used)?;
        lease.used += 1;
        lease.last_used = now;
        Some(lease.leased.clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(instance: &str, slots: u32, start: StartKind) -> Placement {
        Placement {
            instance: instance.parse().unwrap(),
            worker_address: "127.0.0.1:1".to_owned(),
            version: VersionNumber(1),
            start,
            slots,
            timeout_ms: 1_000,
            boot_timeout_ms: 30_000,
            idempotent: false,
            lease_ms: 1_000,
            lease_number: 1,
            memory_bytes: 0,
        }
    }

    #[test]
    fn a_lease_serves_its_version_and_whichever_serves_only_if_it_was_granted_for_that() {
        let now = Instant::now();
        let mut leases = Leases::default();
        let version = |n: u32| Some(VersionNumber(n));
        let of = |instance: &str, n: u32| Placement {
            version: VersionNumber(n),
            ..placement(instance, 1, StartKind::Warm)
        };
        leases.add(&of("i-a", 1), version(1), &gateway(), now);
        leases.add(&of("i-b", 2), None, &gateway(), now);
        assert!(leases.take(version(3), now, true).is_none());
        assert_eq!(leases.held(None).len(), 2);
        assert_eq!(leases.held(version(1)), [id("i-a")]);
        assert_eq!(leases.take(None, now, true).unwrap().instance, id("i-b"));
        assert!(
            leases.take(None, now, true).is_none(),
            "the first was granted for its version"
        );
        leases.release(&id("i-b"), Outcome::Free, now);
        assert_eq!(leases.take(version(2), now, true).unwrap().instance, id("i-b"));
        assert_eq!(leases.take(version(1), now, true).unwrap().instance, id("i-a"));
    }

    fn gateway() -> GatewayId {
        "g-own".parse().unwrap()
    }

    fn id(text: &str) -> InstanceId {
        text.parse().unwrap()
    }

    #[test]
    fn the_instance_used_last_is_taken_first_so_that_the_other_idles_out() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 1, StartKind::Warm), None, &gateway(), at(0));
        leases.add(&placement("i-b", 1, StartKind::Warm), None, &gateway(), at(1));
        for ms in (10..900).step_by(10) {
            let leased = leases.take(None, at(ms), true).unwrap();
            assert_eq!(leased.instance, id("i-b"));
            leases.release(&leased.instance, Outcome::Free, at(ms + 5));
        }
        let back = leases.give_back(at(1_000));
        assert_eq!(back.len(), 1);
        assert_eq!(back[0].instance, id("i-a"));
        assert_eq!(leases.held(None), [id("i-b")]);
    }

    #[test]
    fn no_more_slots_are_taken_than_were_granted() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
        // Granted twice, as after a lost answer: still the same slots.
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
        assert!(leases.take(None, now, true).is_some());
        assert!(leases.take(None, now, true).is_some());
        assert!(leases.take(None, now, true).is_none());
    }

    #[test]
    fn everybody_who_waited_for_a_start_gets_its_kind_and_the_next_is_warm() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 3, StartKind::Restored), None, &gateway(), now);
        let first = leases.take(None, now, true).unwrap();
        let second = leases.take(None, now, true).unwrap();
        assert_eq!(
            (first.start(), second.start()),
            (StartKind::Restored, StartKind::Restored)
        );
        first.note_answer();
        assert_eq!(leases.take(None, now, true).unwrap().start(), StartKind::Warm);
    }

    #[test]
    fn a_lease_wanted_back_takes_nothing_new_and_goes_when_its_last_slot_is_free() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
        let leased = leases.take(None, now, true).unwrap();
        assert!(leases.recall(&leased.instance, now));
        assert!(leases.take(None, now, true).is_none());
        assert!(leases.give_back(now).is_empty());
        assert!(leases.release(&leased.instance, Outcome::Free, now));
        assert_eq!(leases.give_back(now).len(), 1);
        assert!(leases.is_empty());
    }

    #[test]
    fn a_lease_whose_recall_is_taken_back_takes_requests_again_while_a_stream_goes_on() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut leases = Leases::default();
        let long = Placement {
            lease_ms: 20_000,
            ..placement("i-a", 2, StartKind::Warm)
        };
        leases.add(&long, None, &gateway(), start);
        let stream = leases.take(None, start, true).unwrap();
        assert!(leases.recall(&stream.instance, at(10)));
        assert!(leases.take(None, at(20), true).is_none());
        // The scheduler is asked now and then.
        assert!(leases.due(at(20)).is_empty());
        assert_eq!(leases.due(at(600)), [(id("i-a"), 1)]);
        assert!(leases.due(at(700)).is_empty());
        // What it said before the recall does not count.
        leases.confirm(&stream.instance, at(5));
        assert!(leases.take(None, at(710), true).is_none());
        leases.confirm(&stream.instance, at(600));
        assert!(leases.take(None, at(720), true).is_some());
        assert!(
            leases.take(None, at(720), true).is_none(),
            "the stream has the other slot"
        );
    }

    #[test]
    fn a_stuck_slot_ends_an_instance_that_has_no_other() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 1, StartKind::Warm), None, &gateway(), now);
        leases.add(&placement("i-b", 2, StartKind::Warm), None, &gateway(), now);
        let b = leases.take(None, now, true).unwrap();
        assert!(!leases.release(&id("i-b"), Outcome::Stuck, now));
        let a = leases.take_alone(&id("i-a"), now).unwrap();
        assert!(leases.release(&a.instance, Outcome::Stuck, now));
        let back = leases.give_back(now);
        assert_eq!(back.len(), 1);
        assert!(back[0].stuck);
        assert_eq!(b.instance, id("i-b"));
        assert_eq!(leases.held(None), [id("i-b")]);
    }

    #[test]
    fn a_lost_slot_is_not_used_again_while_the_function_may_go_on() {
        let start = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), start);
        let a = leases.take(None, start, true).unwrap();
        assert!(!leases.release(&a.instance, Outcome::Stuck, start));
        assert!(leases.take(None, start, true).is_some(), "the other slot is good");
        assert!(leases.take(None, start, true).is_none(), "the lost slot was used again");
        leases.release(&a.instance, Outcome::Free, start);
        let later = start + OVERDUE_LIMIT;
        assert!(leases.take(None, later, false).is_some());
        assert!(leases.take(None, later, false).is_some());
    }

    #[test]
    fn a_lease_with_only_lost_slots_is_returned_as_busy() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
        for last in [false, true] {
            let leased = leases.take(None, now, true).unwrap();
            assert_eq!(leases.release(&leased.instance, Outcome::Lost, now), last);
        }
        let back = leases.give_back(now);
        assert_eq!((back[0].busy, back[0].stuck), (2, false));
    }

    #[test]
    fn an_unreachable_workers_lease_is_returned_and_nothing_sent_meanwhile() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
        let leased = leases.take(None, now, true).unwrap();
        assert!(leases.release(&leased.instance, Outcome::Unusable, now));
        assert!(leases.take(None, now, true).is_none());
        assert_eq!(leases.give_back(now).len(), 1);
    }

    #[test]
    fn a_lease_that_is_granted_again_has_its_new_number() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), now);
        assert_eq!(leases.take(None, now, true).unwrap().mark.unwrap(), "1 g-own");
        let mut again = placement("i-a", 2, StartKind::Warm);
        again.lease_number = 3;
        leases.add(&again, None, &gateway(), now);
        assert_eq!(leases.take(None, now, true).unwrap().mark.unwrap(), "3 g-own");
        assert_eq!(leases.due(now + Duration::from_secs(1)), [(id("i-a"), 3)]);
    }

    #[test]
    fn a_lease_is_due_in_its_second_half_until_its_renewal_is_confirmed() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 1, StartKind::Warm), None, &gateway(), start);
        assert!(leases.due(at(400)).is_empty());
        assert_eq!(leases.due(at(600)), [(id("i-a"), 1)]);
        // That report was lost.
        assert_eq!(leases.due(at(700)), [(id("i-a"), 1)]);
        assert!(leases.confirm(&id("i-a"), at(700)));
        assert!(leases.due(at(800)).is_empty());
    }

    #[test]
    fn a_lease_that_ran_out_unconfirmed_is_used_only_while_the_scheduler_is_away() {
        let start = Instant::now();
        let mut leases = Leases::default();
        leases.add(&placement("i-a", 2, StartKind::Warm), None, &gateway(), start);
        let later = start + Duration::from_secs(1);
        assert!(leases.take(None, later, true).is_none());
        assert!(leases.take(None, later, false).is_some());
        leases.confirm(&id("i-a"), later);
        assert!(leases.take(None, later, true).is_some());
    }
}
