//! How many calls of each function there are to run, and how a gateway's room is shared out. One call at a time goes to
//! the function that runs the fewest, the longest unserved first. It mirrors counts of the database and is pure.

use std::collections::BTreeMap;
use std::time::Duration;

use rekindle_wire::FunctionId;
use rekindle_wire::api::{Quota, QuotaExceeded, QuotaKind};
use rekindle_wire::ids::GatewayId;

use crate::clock::Millis;
use crate::store::{self, Due};

/// Maximum number of waiting calls of one function.
pub(super) const PER_FUNCTION: u64 = 10_000;
/// Maximum bytes of these: an eighth of all, so that no function takes the room of the others.
pub(super) const BYTES_EACH: u64 = 128 << 20;
/// Maximum number of waiting calls of all functions together.
const ALL: u64 = 100_000;
/// Maximum bytes of all waiting calls.
const BYTES: u64 = 1 << 30;
/// How long a function is left alone when none of its calls is due yet.
const LEFT_ALONE: Duration = super::TICK;
/// How long what a gateway says of its places holds. It asks for work, or renews its claims, more often.
const PLACES_HOLD: Duration = Duration::from_mins(1);
/// How often in a row changes may keep the counts from being replaced.
const SKIPS: u32 = 8;

/// Why a call is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// So many calls of its function wait.
    Function(u64),
    /// So many bytes of its function wait.
    Bytes(u64),
    /// Too much waits.
    All,
    /// As many calls of its namespace wait as may.
    Quota(QuotaExceeded),
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    due: Due,
    /// When it was last served, in calls handed out.
    served: u64,
    /// None of its calls is due before this.
    asleep_until: Millis,
}

/// The counts.
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
        if self.places.values().any(|(places, _)| *places == 0) {
            return u64::MAX;
        }
        let all: u64 = self.places.values().map(|(places, _)| u64::from(*places)).sum();
        (all - all / 4).max(1)
    }

    /// Notes that a gateway is still there. One whose places are all taken asks for no work, and renews its claims.
    pub(super) fn renewed(&mut self, gateway: &GatewayId, now: Millis) {
        if let Some((_, said)) = self.places.get_mut(gateway) {
            *said = now;
        }
    }

    /// Number of calls of a namespace that wait.
    pub(crate) fn backlog(&self, namespace: &str) -> u64 {
        let own = self.functions.iter().filter(|(name, _)| name.namespace() == namespace);
        own.map(|(_, level)| level.due.queued).sum()
    }

    /// Whether the namespace's quota lets one more call wait.
    pub(super) fn admit_to(&self, function: &FunctionId, limits: &Quota) -> Result<(), Full> {
        if limits.async_backlog.is_none() {
            return Ok(());
        }
        let waiting = self.backlog(function.namespace());
        let over = limits.exceeded(QuotaKind::Backlog, waiting, 1);
        over.map_or(Ok(()), |over| Err(Full::Quota(over)))
    }

    /// Whether one more call may wait.
    pub(super) fn admit(&self, function: &FunctionId, bytes: u64) -> Result<(), Full> {
        let all = self.all();
        let own = self.functions.get(function).map_or(Due::default(), |l| l.due);
        if own.queued >= PER_FUNCTION {
            return Err(Full::Function(PER_FUNCTION));
        }
        if own.bytes.saturating_add(bytes) > BYTES_EACH {
            return Err(Full::Bytes(BYTES_EACH));
        }
        if all.queued >= ALL || all.bytes.saturating_add(bytes) > BYTES {
            return Err(Full::All);
        }
        Ok(())
    }

    fn all(&self) -> Due {
        self.functions.values().fold(Due::default(), |sum, l| Due {
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

    /// Number of changes so far.
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
        let all = self.all();
        (all.queued > 0, all.queued + all.running > 0)
    }

    /// The counts of each function.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&FunctionId, &Due)> {
        self.functions.iter().map(|(name, level)| (name, &level.due))
    }

    /// How many calls of which functions a gateway with `room` gets. `at_once` says how many of a function may run at
    /// once.
    pub(super) fn share(&self, room: u32, now: Millis, at_once: impl Fn(&FunctionId) -> u64) -> Vec<(FunctionId, u32)> {
        struct Share<'a> {
            name: &'a FunctionId,
            running: u64,
            left: u64,
            served: u64,
            given: u32,
        }
        let awake = self
            .functions
            .iter()
            .filter(|(_, l)| l.asleep_until <= now && l.due.queued > 0);
        let mut shares: Vec<Share<'_>> = awake
            .map(|(name, level)| Share {
                name,
                running: level.due.running,
                left: level.due.queued.min(at_once(name).saturating_sub(level.due.running)),
                served: level.served,
                given: 0,
            })
            .collect();
        for _ in 0..room {
            let next = shares
                .iter_mut()
                .filter(|s| s.left > 0)
                .min_by_key(|s| (s.running, s.served));
            let Some(share) = next else { break };
            share.left -= 1;
            share.running += 1;
            share.given += 1;
        }
        let given = shares.into_iter().filter(|s| s.given > 0);
        given.map(|s| (s.name.clone(), s.given)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queues(functions: &[(&str, u64, u64)]) -> Queues {
        let mut all = Queues::default();
        let counted = functions.iter().map(|(name, queued, running)| {
            let due = Due {
                queued: *queued,
                running: *running,
                ..Due::default()
            };
            (name.parse().unwrap(), due)
        });
        all.replace(counted.collect(), 0);
        all
    }

    fn shared(queues: &Queues, room: u32, at_once: u64) -> Vec<(String, u32)> {
        let shares = queues.share(room, Millis(1), |_| at_once);
        shares.into_iter().map(|(name, n)| (name.to_string(), n)).collect()
    }

    #[test]
    fn a_function_with_few_calls_does_not_wait_behind_one_with_many() {
        let all = queues(&[("busy", 9_000, 6), ("calm", 2, 0)]);
        assert_eq!(shared(&all, 4, 100), [("busy".to_owned(), 2), ("calm".to_owned(), 2)]);
        assert_eq!(shared(&all, 4, 7), [("busy".to_owned(), 1), ("calm".to_owned(), 2)]);
    }

    #[test]
    fn a_quarter_of_all_places_is_for_functions_that_have_few() {
        let (first, second) = ("g-1".parse().unwrap(), "g-2".parse().unwrap());
        let mut all = queues(&[("slow", 500, 90)]);
        let most = all.most_of_one(&first, 128, Millis(1));
        assert_eq!(most, 96);
        assert_eq!(shared(&all, 38, most), [("slow".to_owned(), 6)]);
        assert_eq!(all.most_of_one(&second, 128, Millis(2)), 192);
        all.renewed(&first, Millis(30_000));
        assert_eq!(all.most_of_one(&second, 128, Millis(60_001)), 192);
        assert_eq!(all.most_of_one(&second, 3, Millis(90_001)), 3);
        assert_eq!(all.most_of_one(&second, 1, Millis(90_002)), 1);
        // One of an older version does not say.
        assert_eq!(all.most_of_one(&first, 0, Millis(90_003)), u64::MAX);
    }

    #[test]
    fn with_room_for_one_the_functions_take_turns() {
        let mut all = queues(&[("a", 10, 0), ("b", 10, 0), ("c", 10, 0)]);
        let mut turns = Vec::new();
        for _ in 0..6 {
            let (name, given) = all.share(1, Millis(1), |_| 100).remove(0);
            all.claimed(&name, u64::from(given), given, Millis(1));
            all.ended(&name, 0);
            turns.push(name.to_string());
        }
        assert_eq!(turns, ["a", "b", "c", "a", "b", "c"]);
    }

    #[test]
    fn a_function_whose_calls_are_for_later_is_left_alone_until_something_comes() {
        let mut all = queues(&[("a", 3, 0)]);
        let name = "a".parse().unwrap();
        all.claimed(&name, 0, 3, Millis(1));
        assert_eq!(shared(&all, 4, 100), []);
        all.added(&name, 1, 5);
        assert_eq!(shared(&all, 9, 100), [("a".to_owned(), 4)]);
    }

    #[test]
    fn what_waits_is_bounded_for_each_function_and_for_all() {
        let (full, other) = ("full".parse().unwrap(), "other".parse().unwrap());
        let mut all = queues(&[("full", PER_FUNCTION, 0)]);
        assert_eq!(all.admit(&full, 1), Err(Full::Function(PER_FUNCTION)));
        assert_eq!(all.admit(&other, 1), Ok(()));
        assert_eq!(all.admit(&other, BYTES_EACH + 1), Err(Full::Bytes(BYTES_EACH)));
        for n in 0..BYTES / BYTES_EACH {
            all.added(&format!("f{n}").parse().unwrap(), BYTES_EACH, 0);
        }
        assert_eq!(all.admit(&other, 1), Err(Full::All));
    }

    #[test]
    fn a_namespace_s_calls_count_together_and_running_ones_do_not() {
        let mut all = queues(&[("a.team", 2, 7), ("b.team", 1, 0), ("a", 5, 0)]);
        let limits = Quota {
            async_backlog: Some(4),
            ..Quota::default()
        };
        let (team, other) = ("c.team".parse().unwrap(), "a".parse().unwrap());
        assert_eq!(all.backlog("team"), 3);
        assert_eq!(all.admit_to(&team, &limits), Ok(()));
        all.added(&team, 1, 0);
        assert!(matches!(all.admit_to(&team, &limits), Err(Full::Quota(over)) if over.used == 4));
        assert_eq!(all.admit_to(&other, &Quota::default()), Ok(()));
    }

    #[test]
    fn a_functions_large_calls_take_no_room_from_anothers_until_they_have_ended() {
        let (large, other) = ("large".parse().unwrap(), "other".parse().unwrap());
        let mut all = Queues::default();
        let call = 1 << 20;
        let mut taken = 0;
        while all.admit(&large, call).is_ok() {
            all.added(&large, call, 0);
            taken += 1;
        }
        assert_eq!(taken, BYTES_EACH / call);
        assert_eq!(all.admit(&other, call), Ok(()));
        // Running ones are kept as well; what has ended is not.
        all.claimed(&large, 2, 2, Millis(1));
        all.waits_again(&large);
        assert_eq!(all.admit(&large, call), Err(Full::Bytes(BYTES_EACH)));
        all.ended(&large, call);
        assert_eq!(all.admit(&large, call), Ok(()));
    }

    #[test]
    fn older_counts_do_not_replace_newer_but_not_for_ever() {
        let mut all = queues(&[("a", 1, 0)]);
        let before = all.changes();
        all.added(&"a".parse().unwrap(), 1, 5);
        for _ in 0..SKIPS {
            all.replace(Vec::new(), before);
        }
        assert_eq!(all.all().queued, 2);
        all.replace(Vec::new(), before);
        assert_eq!(all.all().queued, 0);
    }

    proptest! {
        #[test]
        fn no_share_is_over_the_room_the_queue_or_what_may_run_at_once(
            levels in proptest::collection::vec((0u64..20, 0u64..20), 0..6), room in 0u32..30, at_once in 0u64..25,
        ) {
            let names: Vec<String> = (0..levels.len()).map(|n| format!("f{n}")).collect();
            let functions: Vec<_> = names.iter().zip(&levels).map(|(n, (q, r))| (n.as_str(), *q, *r)).collect();
            let shares = shared(&queues(&functions), room, at_once);
            let given: u32 = shares.iter().map(|(_, n)| n).sum();
            let mut could = 0;
            for (name, queued, running) in &functions {
                let own = shares.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| u64::from(*n));
                prop_assert!(own <= *queued && (own == 0 || running + own <= at_once));
                could += (*queued).min(at_once.saturating_sub(*running));
            }
            prop_assert_eq!(u64::from(given), could.min(u64::from(room)));
        }
    }
}
