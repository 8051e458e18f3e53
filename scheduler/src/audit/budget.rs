//! Bounds what keys can write into the audit log. Its oldest entries go when it is full, so whoever could fill it could
//! have it forget what they did.
//!
//! ```text
//! change ─ 600 at once, 2 a second for all keys of a namespace ─> made ─> an entry
//!   │      half of that for each of them                     └─> refused ─> 10 entries a minute for each key
//!   └─> too_many_requests ─> counted, as other refused ones are: one entry a minute says how many
//! ```
//!
//! No key uses up what the others of its namespace need: it has half at most, and what is refused it for its role, or
//! because it is not there, is taken from that half alone. A key can be revoked whatever is left.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_wire::access::Caller;
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use crate::clock::Millis;

/// The changes that may be asked for by all keys of a namespace, or by one for all namespaces.
const WHOLE: Limit = Limit {
    at_once: 600.0,
    seconds_each: 0.5,
};
/// Those that one key of a namespace may ask for.
const HALF: Limit = Limit {
    at_once: 300.0,
    seconds_each: 1.0,
};
/// Number of refused changes of a key that have an entry each, in a minute.
const REFUSED_A_MINUTE: u32 = 10;
const MINUTE: Millis = Millis(60_000);

/// How many changes may be asked for.
#[derive(Clone, Copy)]
struct Limit {
    at_once: f64,
    /// Time in which one more may be asked for.
    seconds_each: f64,
}

/// What is left of a budget of changes.
struct Changes {
    limit: Limit,
    left: f64,
    at: Millis,
}

impl Changes {
    fn left_at(&self, now: Millis) -> f64 {
        let since = Duration::from_millis(now.since(self.at).0);
        (self.left + since.as_secs_f64() / self.limit.seconds_each).min(self.limit.at_once)
    }
}

/// The refused changes of a key in a minute.
#[derive(Default)]
struct Refused {
    since: Millis,
    entries: u32,
    /// Those without an entry.
    more: u64,
    namespace: Option<Namespace>,
}

/// Refused changes that have no entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) actor: String,
    /// The namespace of the key.
    pub(super) namespace: Option<Namespace>,
    pub(super) count: u64,
}

#[derive(Default)]
struct Accounts {
    changes: BTreeMap<String, Changes>,
    refused: BTreeMap<String, Refused>,
}

/// The budgets of all keys but the platform's own, whose holder may do everything.
#[derive(Default)]
pub(crate) struct Budget(Mutex<Accounts>);

impl Budget {
    /// Takes a change from the budgets of whoever asks for it.
    ///
    /// # Errors
    /// `too_many_requests` if nothing is left of one. That is counted as a refused change, and takes nothing.
    pub(super) fn take(&self, caller: &Caller, now: Millis) -> Result<(), ApiError> {
        if caller.is_platform() {
            return Ok(());
        }
        let own = caller.account().to_owned();
        let budgets = match caller.namespace() {
            None => vec![(own, WHOLE)],
            Some(namespace) => vec![(own, HALF), (of_namespace(&namespace), WHOLE)],
        };
        let mut accounts = self.0.lock();
        for (whose, limit) in &budgets {
            let changes = accounts.changes.entry(whose.clone()).or_insert(Changes {
                limit: *limit,
                left: limit.at_once,
                at: now,
            });
            (changes.left, changes.at) = (changes.left_at(now), now);
            if changes.left < 1.0 {
                accounts.refusals_of(caller, now).more += 1;
                let Limit { at_once, seconds_each } = limit;
                return Err(ApiError::new(
                    ErrorCode::TooManyRequests,
                    format!(
                        "{whose} has asked for {at_once} changes in a few minutes: ask for one each {seconds_each} \
                         seconds at most"
                    ),
                ));
            }
        }
        for (whose, _) in &budgets {
            if let Some(changes) = accounts.changes.get_mut(whose) {
                changes.left -= 1.0;
            }
        }
        Ok(())
    }

    /// Gives the caller's namespace back what a refused change took from it. The key's own stays taken.
    pub(super) fn give_back(&self, caller: &Caller) {
        if caller.is_platform() {
            return;
        }
        let Some(namespace) = caller.namespace() else {
            return;
        };
        // One that was forgotten meanwhile is whole.
        if let Some(changes) = self.0.lock().changes.get_mut(&of_namespace(&namespace)) {
            changes.left = (changes.left + 1.0).min(changes.limit.at_once);
        }
    }

    /// Whether a refused change gets an entry of its own. Otherwise it is counted.
    pub(super) fn has_entry(&self, caller: &Caller, now: Millis) -> bool {
        if caller.is_platform() {
            return true;
        }
        let mut accounts = self.0.lock();
        let refused = accounts.refusals_of(caller, now);
        let has_entry = refused.entries < REFUSED_A_MINUTE;
        match has_entry {
            true => refused.entries += 1,
            false => refused.more += 1,
        }
        has_entry
    }

    /// Takes the refused changes without entries, and forgets budgets that are whole again. Called once a minute.
    pub(super) fn left_out(&self, now: Millis) -> Vec<LeftOut> {
        let mut accounts = self.0.lock();
        accounts
            .changes
            .retain(|_, changes| changes.left_at(now) < changes.limit.at_once);
        let mut left_out = Vec::new();
        for (actor, refused) in &mut accounts.refused {
            let count = std::mem::take(&mut refused.more);
            if count > 0 {
                left_out.push(LeftOut {
                    actor: actor.clone(),
                    namespace: refused.namespace.clone(),
                    count,
                });
            }
        }
        accounts.refused.retain(|_, refused| now.since(refused.since) < MINUTE);
        left_out
    }
}

/// The name of the budget that all keys of a namespace share.
fn of_namespace(namespace: &Namespace) -> String {
    format!("namespace {namespace}")
}

impl Accounts {
    fn refusals_of(&mut self, caller: &Caller, now: Millis) -> &mut Refused {
        let refused = self
            .refused
            .entry(caller.account().to_owned())
            .or_insert_with(|| Refused {
                since: now,
                namespace: caller.namespace(),
                ..Refused::default()
            });
        if now.since(refused.since) >= MINUTE {
            (refused.since, refused.entries) = (now, 0);
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::access::{AccessRole, Scope, generate};

    use super::*;

    fn of_team() -> Caller {
        let scope = Scope::Namespace("team".parse().unwrap());
        Caller::with_key(generate().0, AccessRole::Invoker, scope)
    }

    #[test]
    fn the_keys_of_a_namespace_share_a_budget_of_changes_and_the_platforms_own_has_none() {
        let budget = Budget::default();
        let keys: Vec<_> = (0..3).map(|_| of_team()).collect();
        let elsewhere = Caller::with_key(generate().0, AccessRole::Invoker, Scope::Platform);
        let taken = |caller: &Caller, now| (0..2_000).filter(|_| budget.take(caller, Millis(now)).is_ok()).count();
        for key in &keys[..2] {
            assert_eq!(taken(key, 0), 300, "half");
        }
        let last = &keys[2];
        assert_eq!(taken(last, 0), 0);
        assert_eq!(taken(last, 1_000), 2);
        assert_eq!(taken(&elsewhere, 0), 600);
        assert_eq!(taken(&Caller::platform(), 0), 2_000);
        let error = budget.take(last, Millis(1_000)).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooManyRequests);
        assert!(
            error.message.contains("namespace team") && error.message.contains("600"),
            "{error}"
        );
        let told: u64 = budget
            .left_out(Millis(2_000))
            .iter()
            .map(|left_out| left_out.count)
            .sum();
        assert_eq!(told, 2 * 1_700 + 2_000 + 1_998 + 1_400 + 1, "none is lost");
        assert_eq!(budget.left_out(Millis(2_000)), []);
        assert_eq!(taken(last, 3_600_000), 300);
        let error = budget.take(last, Millis(3_600_000)).unwrap_err();
        assert!(error.message.contains(last.name()), "{error}");
        assert_eq!(taken(last, 3_602_000), 2);
    }

    #[test]
    fn what_keys_are_refused_takes_nothing_from_their_namespace() {
        let budget = Budget::default();
        for _ in 0..20 {
            let leaked = of_team();
            for _ in 0..300 {
                budget.take(&leaked, Millis(0)).unwrap();
                budget.give_back(&leaked);
            }
            budget.take(&leaked, Millis(0)).unwrap_err();
        }
        budget.take(&of_team(), Millis(0)).unwrap();
        for _ in 0..1_000 {
            budget.give_back(&Caller::platform());
            budget.give_back(&of_team());
        }
        let keys = (0..11).map(|_| of_team());
        let taken = keys.map(|key| (0..60).filter(|_| budget.take(&key, Millis(0)).is_ok()).count());
        assert_eq!(taken.sum::<usize>(), 600, "it is never more than whole");
    }

    #[test]
    fn few_refused_changes_of_a_key_have_entries_and_the_rest_are_counted() {
        let budget = Budget::default();
        let caller = of_team();
        let written = |now| (0..100).filter(|_| budget.has_entry(&caller, Millis(now))).count();
        assert_eq!((written(0), written(59_999)), (10, 0));
        assert_eq!(written(60_000), 10);
        let left_out = LeftOut {
            actor: caller.name().to_owned(),
            namespace: Some("team".parse().unwrap()),
            count: 280,
        };
        assert_eq!(budget.left_out(Millis(60_001)), [left_out]);
        assert!((0..100).all(|_| budget.has_entry(&Caller::platform(), Millis(0))));
        budget.left_out(Millis(200_000));
        let accounts = budget.0.lock();
        assert!(accounts.refused.is_empty() && accounts.changes.is_empty());
    }
}
