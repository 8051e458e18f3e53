//! Bounds what keys can write into the audit log. Its oldest entries go when it is full, so whoever could fill it could
//! have it forget what they did.
//!
//! ```text
//! change ─ 600 at once, 2 a second for all of a namespace ─> made ─> an entry
//!   │      half of that for each key and rule           └─> refused ─> 10 entries a minute for each
//!   │      a quarter for each whom rules admit
//!   └─> too_many_requests ─> counted, as other refused ones are: one entry a minute says how many
//! ```
//!
//! No key uses up what the others of its namespace need: it has half at most. What is refused it for its role, or
//! because it is not there, is taken from that half alone. A key can be revoked whatever is left.
//!
//! Whom rules of several namespaces admit pays with the rule that admits the change, and with its namespace. What other
//! namespaces say of them neither takes from their budget nor gives them another.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_wire::access::{Caller, Grant, RuleId};
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use crate::clock::Millis;

/// The changes that may be asked for by all keys and rules of a namespace, or by one for all namespaces.
const WHOLE: Limit = Limit {
    at_once: 600.0,
    seconds_each: 0.5,
};
/// Those that one key of a namespace may ask for, or all whom one rule admits.
const HALF: Limit = Limit {
    at_once: 300.0,
    seconds_each: 1.0,
};
/// Those that one person or machine may ask for whom rules admit.
const QUARTER: Limit = Limit {
    at_once: 150.0,
    seconds_each: 2.0,
};
/// Number of refused changes of a key or a rule that have an entry each, in a minute.
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
struct RefusedChanges {
    since: Millis,
    entries: u32,
    /// Those without an entry.
    more: u64,
    namespace: Option<Namespace>,
}

/// Refused changes that have no entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OmittedEntries {
    pub(super) actor: String,
    pub(super) namespace: Option<Namespace>,
    pub(super) count: u64,
}

#[derive(Default)]
struct Accounts {
    changes: BTreeMap<String, Changes>,
    refused: BTreeMap<String, RefusedChanges>,
}

/// The budgets of all keys but the platform's own, whose holder may do everything.
#[derive(Default)]
pub(crate) struct Budget(Mutex<Accounts>);

impl Budget {
    /// Takes a change, in this namespace if it is in one, from the budget of whoever asks for it, and from those of the
    /// grant that admits it.
    ///
    /// # Errors
    /// `too_many_requests` if nothing is left of one. That is counted as a refused change, and takes nothing.
    pub(super) fn take(
        &self,
        caller: &Caller,
        grant: Option<&Grant>,
        namespace: Option<&Namespace>,
        now: Millis,
    ) -> Result<(), ApiError> {
        if caller.is_platform() {
            return Ok(());
        }
        let limit = match caller.grants.first() {
            _ if caller.is_identity() => QUARTER,
            Some(grant) => of_one(grant),
            None => HALF,
        };
        let own = std::iter::once((caller.name().to_owned(), limit));
        let mut accounts = self.0.lock();
        let taken = accounts.take(
            &own.chain(grant.into_iter().flat_map(of_grant)).collect::<Vec<_>>(),
            now,
        );
        taken.inspect_err(|_| accounts.refusals_of(caller, namespace, now).more += 1)
    }

    /// Takes a change from the budgets of the grant that admits it, whose caller has paid its part.
    ///
    /// # Errors
    /// `too_many_requests` if nothing is left of one.
    pub(super) fn take_for(&self, grant: &Grant, now: Millis) -> Result<(), ApiError> {
        self.0.lock().take(&of_grant(grant), now)
    }

    /// Gives a namespace back what a refused change took from it. The caller's own stays taken.
    pub(super) fn give_back(&self, namespace: &Namespace) {
        // One that was forgotten meanwhile is whole.
        if let Some(changes) = self.0.lock().changes.get_mut(&of_namespace(namespace)) {
            changes.left = (changes.left + 1.0).min(changes.limit.at_once);
        }
    }

    /// Whether a refused change, in this namespace if it is in one, gets an entry of its own. Otherwise it is counted.
    pub(super) fn has_entry(&self, caller: &Caller, namespace: Option<&Namespace>, now: Millis) -> bool {
        if caller.is_platform() {
            return true;
        }
        let mut accounts = self.0.lock();
        let refused = accounts.refusals_of(caller, namespace, now);
        let has_entry = refused.entries < REFUSED_A_MINUTE;
        match has_entry {
            true => refused.entries += 1,
            false => refused.more += 1,
        }
        has_entry
    }

    /// Takes the refused changes without entries, and forgets budgets that are whole again. Called once a minute.
    pub(super) fn left_out(&self, now: Millis) -> Vec<OmittedEntries> {
        let mut accounts = self.0.lock();
        accounts
            .changes
            .retain(|_, changes| changes.left_at(now) < changes.limit.at_once);
        let mut left_out = Vec::new();
        for (actor, refused) in &mut accounts.refused {
            let count = std::mem::take(&mut refused.more);
            if count > 0 {
                left_out.push(OmittedEntries {
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

/// What one key or rule may ask for.
fn of_one(grant: &Grant) -> Limit {
    match grant.scope.namespace() {
        None => WHOLE,
        Some(_) => HALF,
    }
}

/// The budgets of a rule and of the namespace that its grant is for. A key pays its own part.
fn of_grant(grant: &Grant) -> Vec<(String, Limit)> {
    let rule = grant.rule.iter().map(|rule| (rule.to_string(), of_one(grant)));
    let namespace = grant.scope.namespace();
    rule.chain(namespace.map(|namespace| (of_namespace(&namespace), WHOLE)))
        .collect()
}

impl Accounts {
    /// Takes a change from all of these budgets, or from none.
    fn take(&mut self, budgets: &[(String, Limit)], now: Millis) -> Result<(), ApiError> {
        for (whose, limit) in budgets {
            let changes = self.changes.entry(whose.clone()).or_insert(Changes {
                limit: *limit,
                left: limit.at_once,
                at: now,
            });
            (changes.left, changes.at) = (changes.left_at(now), now);
            if changes.left < 1.0 {
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
        for (whose, _) in budgets {
            if let Some(changes) = self.changes.get_mut(whose) {
                changes.left -= 1.0;
            }
        }
        Ok(())
    }

    /// The refused changes of a key, or of a rule: that of the namespace, if one admits the caller there. A rule may
    /// admit any number of names.
    fn refusals_of(&mut self, caller: &Caller, namespace: Option<&Namespace>, now: Millis) -> &mut RefusedChanges {
        let meets = |grant: &&Grant| namespace.is_some_and(|namespace| grant.scope.meets(namespace));
        let grant = caller.grants.iter().find(meets).or(caller.grants.first());
        let rule = grant.and_then(|grant| grant.rule.as_ref());
        let whose = rule.map_or_else(|| caller.name(), RuleId::as_str);
        let refused = self.refused.entry(whose.to_owned()).or_insert_with(|| RefusedChanges {
            since: now,
            namespace: grant.and_then(|grant| grant.scope.namespace()),
            ..RefusedChanges::default()
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
        let take = |caller: &Caller, now| budget.take(caller, caller.grants.first(), None, Millis(now));
        let taken = |caller: &Caller, now| (0..2_000).filter(|_| take(caller, now).is_ok()).count();
        for key in &keys[..2] {
            assert_eq!(taken(key, 0), 300, "half");
        }
        let last = &keys[2];
        assert_eq!(taken(last, 0), 0);
        assert_eq!(taken(last, 1_000), 2);
        assert_eq!(taken(&elsewhere, 0), 600);
        assert_eq!(taken(&Caller::platform(), 0), 2_000);
        let error = take(last, 1_000).unwrap_err();
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
        let error = take(last, 3_600_000).unwrap_err();
        assert!(error.message.contains(last.name()), "{error}");
        assert_eq!(taken(last, 3_602_000), 2);
    }

    #[test]
    fn what_keys_are_refused_takes_nothing_from_their_namespace() {
        let budget = Budget::default();
        let team = "team".parse().unwrap();
        let take = |caller: &Caller| budget.take(caller, caller.grants.first(), None, Millis(0));
        for _ in 0..20 {
            let leaked = of_team();
            for _ in 0..300 {
                take(&leaked).unwrap();
                budget.give_back(&team);
            }
            take(&leaked).unwrap_err();
        }
        take(&of_team()).unwrap();
        for _ in 0..1_000 {
            budget.give_back(&team);
        }
        let keys = (0..11).map(|_| of_team());
        let taken = keys.map(|key| (0..60).filter(|_| take(&key).is_ok()).count());
        assert_eq!(taken.sum::<usize>(), 600, "it is never more than whole");
    }

    #[test]
    fn few_refused_changes_of_a_key_have_entries_and_the_rest_are_counted() {
        let budget = Budget::default();
        let caller = of_team();
        let written = |now| {
            (0..100)
                .filter(|_| budget.has_entry(&caller, None, Millis(now)))
                .count()
        };
        assert_eq!((written(0), written(59_999)), (10, 0));
        assert_eq!(written(60_000), 10);
        let left_out = OmittedEntries {
            actor: caller.name().to_owned(),
            namespace: Some("team".parse().unwrap()),
            count: 280,
        };
        assert_eq!(budget.left_out(Millis(60_001)), [left_out]);
        assert!((0..100).all(|_| budget.has_entry(&Caller::platform(), None, Millis(0))));
        budget.left_out(Millis(200_000));
        let accounts = budget.0.lock();
        assert!(accounts.refused.is_empty() && accounts.changes.is_empty());
    }
    fn rule(scope: &str) -> Grant {
        Grant {
            rule: Some(RuleId::generate()),
            role: AccessRole::Admin,
            scope: scope.parse().unwrap(),
        }
    }

    fn named(name: &str, grants: &[&Grant]) -> Caller {
        Caller::with_identity(
            name.to_owned(),
            None,
            grants.iter().map(|grant| (*grant).clone()).collect(),
        )
    }

    #[test]
    fn a_rule_of_another_namespace_takes_nothing_of_what_people_may_change_elsewhere() {
        let budget = Budget::default();
        let (evil, team) = (rule("*.evil"), rule("*.team"));
        let taken = |caller: &Caller, grant: &Grant| {
            let take = || budget.take(caller, Some(grant), None, Millis(0));
            (0..2_000).filter(|_| take().is_ok()).count()
        };
        let people: Vec<_> = (0..6).map(|n| named(&format!("oidc:{n}"), &[&evil, &team])).collect();
        // Whoever they are, they share the rule's half of its own namespace, and no more than that.
        let of_evil: usize = people[..4].iter().map(|person| taken(person, &evil)).sum();
        assert_eq!((of_evil, taken(&people[4], &evil)), (300, 0));
        assert_eq!(taken(&people[4], &team), 150, "a quarter for each");
        assert_eq!(taken(&people[5], &team), 150);
        assert_eq!(
            taken(&named("oidc:6", &[&team]), &team),
            0,
            "half for all whom a rule admits"
        );
    }

    #[test]
    fn whoever_has_grants_in_two_namespaces_cannot_write_more_by_new_rules() {
        let budget = Budget::default();
        let friend = rule("*.friend");
        let made = (0..20).map(|n| {
            // A new rule and another name each time.
            let own = rule("*.team");
            let eve = named(&format!("oidc:eve{n}"), &[&own, &friend]);
            let take = || budget.take(&eve, Some(&own), None, Millis(0));
            (0..1_000).filter(|_| take().is_ok()).count()
        });
        assert_eq!(made.sum::<usize>(), 600, "what the namespace has");
        let last = rule("*.team");
        budget.take_for(&last, Millis(0)).unwrap_err();
        budget.take_for(&rule("*.other"), Millis(0)).unwrap();
        // Refused ones are those of the rule that admits to the namespace.
        let team = "team".parse().unwrap();
        let eve = named("oidc:eve", &[&friend, &last]);
        assert!((0..10).all(|_| budget.has_entry(&eve, Some(&team), Millis(0))));
        assert!(!budget.has_entry(&eve, Some(&team), Millis(0)) && budget.has_entry(&eve, None, Millis(0)));
    }
}
