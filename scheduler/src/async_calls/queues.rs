//! How many calls of each function there are to run, how many more may wait, and how a gateway's room is shared out.
//! One call at a time goes to the namespace that runs the fewest, the longest unserved first, and there to the function
//! of which the same is true. It mirrors counts of the database and is pure.
//!
//! Namespaces share places and room by what is free: each may have some times as much as nobody has. One alone gets
//! most of it, and one that comes later most of what is left. Where all have much to run, all get the same.

use std::collections::BTreeMap;
use std::time::Duration;

use rekindle_wire::FunctionId;
use rekindle_wire::api::{Quota, QuotaExceeded, QuotaKind};
use rekindle_wire::ids::GatewayId;

use crate::clock::Millis;
use crate::store::{self, QueueCounts};

/// Maximum number of waiting calls of one function.
pub(super) const PER_FUNCTION: u64 = 10_000;
/// Maximum bytes of these: an eighth of all, so that no function takes the room of the others.
pub(super) const BYTES_EACH: u64 = 128 << 20;
/// Maximum number of waiting calls of all functions together.
const ALL: u64 = 100_000;
/// Maximum bytes of all waiting calls.
const BYTES: u64 = 1 << 30;
/// What of these only the platform's own calls may use: a part of so many.
const OWN_PART: u64 = 16;
/// A function of which fewer calls, and fewer bytes, wait takes these whatever else its namespace has.
const FEW: u64 = 16;
const FEW_BYTES: u64 = 2 << 20;
/// Functions of a namespace that may do so at once.
const FEW_FUNCTIONS: usize = 16;
/// How many times as much as is free a namespace's waiting calls may take: three quarters of all, if it is alone.
const WAITING_PER_FREE: u64 = 3;
/// The same of gateways' places. Alone a namespace gets seven eighths, which is more than one function of it gets.
const RUNNING_PER_FREE: u64 = 7;
/// How long a function is left alone when none of its calls is due yet.
const LEFT_ALONE: Duration = super::TICK;
/// How long what a gateway says of its places holds. It asks for work, or renews its claims, more often.
const PLACES_HOLD: Duration = Duration::from_mins(1);
/// How often in a row changes may keep the counts from being replaced.
const SKIPS: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// A client or a function, through a gateway.
    Client,
    /// The scheduler: a schedule is due, or a destination is told of an end.
    Platform,
}

/// Why a call is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueFull {
    /// So many calls of its function wait.
    Function(u64),
    /// So many bytes of its function wait.
    Bytes(u64),
    /// Calls of its namespace take as much as they may, beside what is free.
    Namespace,
    /// Too much waits.
    All,
    /// As many calls of its namespace wait as may.
    Quota(QuotaExceeded),
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    due: QueueCounts,
    /// When it was last served, in calls handed out.
    served: u64,
    /// None of its calls is due before this.
    asleep_until: Millis,
}

#[derive(Debug, Default)]
pub(crate) struct Queues {
    functions: BTreeMap<FunctionId, Level>,
    handed_out: u64,
    /// Number of changes, so that older counts do not replace newer ones.
    changes: u64,
    skipped: u32,
    /// Calls that each gateway runs at most, and when it said so.
    places: BTreeMap<GatewayId, (u32, Millis)>,
}

impl Queues {
    /// Notes how many calls a gateway runs at most. Returns how many of one function may run at all gateways: three
    /// quarters. The rest is for functions that have few or none, however long the calls of others take.
    pub(super) fn most_of_one(&mut self, gateway: &GatewayId, places: u32, now: Millis) -> u64 {
        self.places.insert(gateway.clone(), (places, now));
        self.places
            .retain(|_, (_, said)| now.since(*said) < Millis::from(PLACES_HOLD));
        self.places().map_or(u64::MAX, |all| (all - all / 4).max(1))
    }

    /// Number of calls that all gateways together may run, if all have said so.
    fn places(&self) -> Option<u64> {
        let said = self.places.values().map(|(places, _)| u64::from(*places));
        let all: u64 = said.clone().sum();
        (all > 0 && said.min() > Some(0)).then_some(all)
    }

    /// Notes that a gateway is still there. One whose places are all taken asks for no work, and renews its claims.
    pub(super) fn renewed(&mut self, gateway: &GatewayId, now: Millis) {
        if let Some((_, said)) = self.places.get_mut(gateway) {
            *said = now;
        }
    }

    /// Number of calls of a namespace that wait.
    pub(crate) fn backlog(&self, namespace: &str) -> u64 {
        self.sum(|name| name.namespace() == namespace).queued
    }

    /// Whether the namespace's quota lets one more call wait.
    pub(super) fn admit_to(&self, function: &FunctionId, limits: &Quota) -> Result<(), QueueFull> {
        if limits.async_backlog.is_none() {
            return Ok(());
        }
        let waiting = self.backlog(function.namespace());
        let over = limits.exceeded(QuotaKind::Backlog, waiting, 1);
        over.map_or(Ok(()), |over| Err(QueueFull::Quota(over)))
    }

    /// Whether one more call may wait.
    pub(super) fn admit(&self, function: &FunctionId, bytes: u64, sender: Sender) -> Result<(), QueueFull> {
        let own = self.functions.get(function).map_or(QueueCounts::default(), |l| l.due);
        if own.queued >= PER_FUNCTION {
            return Err(QueueFull::Function(PER_FUNCTION));
        }
        if own.bytes.saturating_add(bytes) > BYTES_EACH {
            return Err(QueueFull::Bytes(BYTES_EACH));
        }
        let of = |all: u64| match sender {
            Sender::Client => all - all / OWN_PART,
            Sender::Platform => all,
        };
        let all = self.sum(|_| true);
        let free = of(ALL).saturating_sub(all.queued);
        let free_bytes = of(BYTES).saturating_sub(all.bytes);
        if free == 0 || free_bytes < bytes {
            return Err(QueueFull::All);
        }
        let has_few = own.queued < FEW && own.bytes.saturating_add(bytes) <= FEW_BYTES;
        if sender == Sender::Platform && has_few && self.with_few(function) < FEW_FUNCTIONS {
            return Ok(());
        }
        let own = self.sum(|name| name.namespace() == function.namespace());
        let may = |own: u64, more, free| may_have(own, more, free, WAITING_PER_FREE);
        match may(own.queued, 1, free) && may(own.bytes, bytes, free_bytes) {
            true => Ok(()),
            false => Err(QueueFull::Namespace),
        }
    }

    /// Number of other functions of the same namespace of which few calls wait.
    fn with_few(&self, function: &FunctionId) -> usize {
        let others = self.functions.iter().filter(|(name, level)| {
            let waiting = 1..=FEW;
            *name != function
                && name.namespace() == function.namespace()
                && waiting.contains(&level.due.queued)
                && level.due.bytes <= FEW_BYTES
        });
        others.take(FEW_FUNCTIONS).count()
    }

    /// What there is of some functions together.
    fn sum(&self, wanted: impl Fn(&FunctionId) -> bool) -> QueueCounts {
        let levels = self.functions.iter().filter(|(name, _)| wanted(name));
        levels.fold(QueueCounts::default(), |sum, (_, l)| QueueCounts {
            queued: sum.queued + l.due.queued,
            running: sum.running + l.due.running,
            bytes: sum.bytes.saturating_add(l.due.bytes),
            oldest_unix_ms: 0,
        })
    }

    /// Counts an accepted call.
    pub(super) fn added(&mut self, function: &FunctionId, bytes: u64, now_unix_ms: i64) {
        self.changes += 1;
        let level = self.functions.entry(function.clone()).or_default();
        if level.due.queued + level.due.running == 0 {
            level.due.oldest_unix_ms = now_unix_ms;
        }
        level.due.queued += 1;
        level.due.bytes += bytes;
        level.asleep_until = Millis(0);
    }

    /// Counts claimed calls: `taken` of the `wanted` ones.
    pub(super) fn claimed(&mut self, function: &FunctionId, taken: u64, wanted: u32, now: Millis) {
        self.changes += 1;
        let Some(level) = self.functions.get_mut(function) else {
            return;
        };
        level.due.queued = level.due.queued.saturating_sub(taken);
        level.due.running += taken;
        self.handed_out += 1;
        level.served = self.handed_out;
        if taken < u64::from(wanted) {
            level.asleep_until = now.plus(LEFT_ALONE.into());
        }
    }

    /// Counts a call of `bytes` bytes that has ended: it neither runs nor waits.
    pub(super) fn ended(&mut self, function: &FunctionId, bytes: u64) {
        self.changes += 1;
        if let Some(level) = self.functions.get_mut(function) {
            level.due.running = level.due.running.saturating_sub(1);
            level.due.bytes = level.due.bytes.saturating_sub(bytes);
        }
    }

    /// Counts a call that runs no more and waits again.
    pub(super) fn waits_again(&mut self, function: &FunctionId) {
        self.changes += 1;
        if let Some(level) = self.functions.get_mut(function) {
            level.due.running = level.due.running.saturating_sub(1);
            level.due.queued += 1;
        }
    }

    /// Records a change that will be counted later; until then no function is left alone.
    pub(super) fn note_unknown(&mut self) {
        self.changes += 1;
        for level in self.functions.values_mut() {
            level.asleep_until = Millis(0);
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Replaces the counts by the database's, which were made when there had been `changes`.
    pub(super) fn replace(&mut self, counted: store::Queues, changes: u64) {
        if self.changes != changes && self.skipped < SKIPS {
            self.skipped += 1;
            return;
        }
        self.skipped = 0;
        let mut before = std::mem::take(&mut self.functions);
        let levels = counted.into_iter().map(|(name, due)| {
            let level = before.remove(&name).unwrap_or_default();
            (name, Level { due, ..level })
        });
        self.functions = levels.collect();
    }

    /// Whether any call waits, and whether there is any at all.
    pub(super) fn has_work(&self) -> (bool, bool) {
        let all = self.sum(|_| true);
        (all.queued > 0, all.queued + all.running > 0)
    }

    /// The counts of each function.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&FunctionId, &QueueCounts)> {
        self.functions.iter().map(|(name, level)| (name, &level.due))
    }

    /// How many calls of which functions a gateway with `room` gets. `at_once` says how many of a function may run at
    /// once.
    pub(super) fn share(&self, room: u32, now: Millis, at_once: impl Fn(&FunctionId) -> u64) -> Vec<(FunctionId, u32)> {
        #[derive(Default)]
        struct Namespace<'a> {
            running: u64,
            served: u64,
            left: u64,
            functions: Vec<Share<'a>>,
        }
        struct Share<'a> {
            name: &'a FunctionId,
            running: u64,
            left: u64,
            served: u64,
            given: u32,
        }
        let mut namespaces: BTreeMap<&str, Namespace<'_>> = BTreeMap::new();
        let mut running = 0;
        for (name, level) in &self.functions {
            let own = namespaces.entry(name.namespace()).or_default();
            running += level.due.running;
            own.running += level.due.running;
            own.served = own.served.max(level.served);
            if level.asleep_until > now || level.due.queued == 0 {
                continue;
            }
            let left = level.due.queued.min(at_once(name).saturating_sub(level.due.running));
            own.left = own.left.saturating_add(left);
            own.functions.push(Share {
                name,
                running: level.due.running,
                left,
                served: level.served,
                given: 0,
            });
        }
        // More calls than places: others run at gateways whose places a new leader has not heard of yet.
        let mut free = self.places().and_then(|all| all.checked_sub(running));
        for _ in 0..room {
            // One that runs none gets a place that there is, whatever the counts say.
            let may = |n: &Namespace<'_>| {
                n.running == 0 || free.is_none_or(|free| may_have(n.running, 1, free, RUNNING_PER_FREE))
            };
            let next = namespaces
                .values_mut()
                .filter(|n| n.left > 0 && may(n))
                .min_by_key(|n| (n.running, n.served));
            let Some(own) = next else { break };
            let waiting = own.functions.iter_mut().filter(|s| s.left > 0);
            let Some(share) = waiting.min_by_key(|s| (s.running, s.served)) else {
                break;
            };
            share.left -= 1;
            share.running += 1;
            share.given += 1;
            own.left -= 1;
            own.running += 1;
            free = free.map(|free| free.saturating_sub(1));
        }
        let shares = namespaces.into_values().flat_map(|n| n.functions);
        let given = shares.filter(|s| s.given > 0);
        given.map(|s| (s.name.clone(), s.given)).collect()
    }
}

/// Whether one that has `own` may have `more` of what is `free`: at most so many times as much as that.
fn may_have(own: u64, more: u64, free: u64, times: u64) -> bool {
    own.saturating_add(more) <= free.saturating_mul(times)
}

#[cfg(test)]
mod tests;
