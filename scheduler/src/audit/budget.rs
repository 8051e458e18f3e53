//! Bounds what keys can write into the audit log. Its oldest entries go when it is full, so whoever could fill it could
//! have it forget what they did.
//!
//! ```text
//! change ─ 600 at once, 2 a second for all keys of a namespace ─> made ─> an entry
//!   │                                                        └─> refused ─> 10 entries a minute for each key
//!   └─> too_many_requests ─> counted, as other refused ones are: one entry a minute says how many
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_wire::access::Caller;
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use crate::clock::Millis;

/// Number of changes that may be asked for at once, by all keys of a namespace, or by one for all namespaces.
const AT_ONCE: f64 = 600.0;
/// Number of changes a second after that.
const A_SECOND: f64 = 2.0;
/// Number of refused changes of a key that have an entry each, in a minute.
const REFUSED_A_MINUTE: u32 = 10;
const MINUTE: Millis = Millis(60_000);

/// What is left of a budget of changes.
struct Changes {
    left: f64,
    at: Millis,
}

impl Changes {
    fn left_at(&self, now: Millis) -> f64 {
        let since = Duration::from_millis(now.since(self.at).0);
        (self.left + since.as_secs_f64() * A_SECOND).min(AT_ONCE)
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
    /// Takes a change from the budget of whoever asks for it.
    ///
    /// # Errors
    /// `too_many_requests` if nothing is left of it. That is counted as a refused change.
    pub(super) fn take(&self, caller: &Caller, now: Millis) -> Result<(), ApiError> {
        if caller.key.is_none() {
            return Ok(());
        }
        let whose = caller.scope.namespace().map_or_else(
            || caller.name().to_owned(),
            |namespace| format!("namespace {namespace}"),
        );
        let mut accounts = self.0.lock();
        let changes = accounts
            .changes
            .entry(whose.clone())
            .or_insert(Changes { left: AT_ONCE, at: now });
        (changes.left, changes.at) = (changes.left_at(now), now);
        if changes.left >= 1.0 {
            changes.left -= 1.0;
            return Ok(());
        }
        accounts.refusals_of(caller, now).more += 1;
        Err(ApiError::new(
            ErrorCode::TooManyRequests,
            format!("{whose} has asked for {AT_ONCE} changes in a few minutes: ask for {A_SECOND} a second at most"),
        ))
    }

    /// Whether a refused change gets an entry of its own. Otherwise it is counted.
    pub(super) fn has_entry(&self, caller: &Caller, now: Millis) -> bool {
        if caller.key.is_none() {
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
        accounts.changes.retain(|_, changes| changes.left_at(now) < AT_ONCE);
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

impl Accounts {
    fn refusals_of(&mut self, caller: &Caller, now: Millis) -> &mut Refused {
        let refused = self.refused.entry(caller.name().to_owned()).or_insert_with(|| Refused {
            since: now,
            namespace: caller.scope.namespace(),
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
        Caller {
            key: Some(generate().0),
            role: AccessRole::Invoker,
            scope: Scope::Namespace("team".parse().unwrap()),
        }
    }

    #[test]
    fn the_keys_of_a_namespace_share_a_budget_of_changes_and_the_platforms_own_has_none() {
        let budget = Budget::default();
        let (one, other) = (of_team(), of_team());
        let elsewhere = Caller {
            scope: Scope::Platform,
            ..of_team()
        };
        let taken = |caller: &Caller, now| (0..2_000).filter(|_| budget.take(caller, Millis(now)).is_ok()).count();
        assert_eq!(taken(&one, 0), 600);
        assert_eq!(taken(&other, 0), 0);
        assert_eq!(taken(&other, 1_000), 2);
        assert_eq!(taken(&elsewhere, 0), 600);
        assert_eq!(taken(&Caller::platform(), 0), 2_000);
        let error = budget.take(&one, Millis(1_000)).unwrap_err();
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
        assert_eq!(told, 1_400 + 2_000 + 1_998 + 1_400 + 1, "none is lost");
        assert_eq!(budget.left_out(Millis(2_000)), []);
        assert_eq!(taken(&one, 3_600_000), 600);
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
