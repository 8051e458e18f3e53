//! The rules of access in memory.

use std::collections::BTreeMap;

use rekindle_wire::access::{Caller, Credential, RuleId};
use rekindle_wire::api::AccessRule;
use rekindle_wire::internal::KnownRule;
use rekindle_wire::{ApiError, ErrorCode, Namespace};

/// Maximum number of rules: a gateway compares a token with each of its issuer's.
const RULES_MAX: usize = 1_000;
/// Maximum number of rules of one namespace, so that its admin leaves others room.
const RULES_OF_NAMESPACE_MAX: usize = 100;

/// Every rule, and when one has changed last.
#[derive(Default)]
pub(super) struct RuleTable {
    rules: BTreeMap<RuleId, AccessRule>,
    /// The revision of the last change.
    changed: u64,
}

impl RuleTable {
    pub(super) fn new(stored: Vec<AccessRule>) -> Self {
        let rules = stored.into_iter().map(|rule| (rule.id.clone(), rule)).collect();
        Self { rules, changed: 0 }
    }

    /// Every rule, the newest first.
    pub(super) fn all(&self) -> Vec<AccessRule> {
        let mut all: Vec<_> = self.rules.values().cloned().collect();
        all.sort_by(|a, b| (b.created_unix_s, &b.id).cmp(&(a.created_unix_s, &a.id)));
        all
    }

    /// Refuses one more rule if there are too many.
    ///
    /// # Errors
    /// `conflict`.
    pub(super) fn check_room(&self, namespace: Option<&Namespace>) -> Result<(), ApiError> {
        let full = |what: String| {
            let message = format!("{what}: remove those that are not used any more (`fn access list`)");
            Err(ApiError::new(ErrorCode::Conflict, message))
        };
        if self.rules.len() >= RULES_MAX {
            return full(format!("there are {RULES_MAX} rules already"));
        }
        let of_namespace = |rule: &&AccessRule| namespace.is_some() && rule.namespace.as_ref() == namespace;
        match (namespace, self.rules.values().filter(of_namespace).count()) {
            (Some(namespace), RULES_OF_NAMESPACE_MAX..) => full(format!(
                "the namespace {namespace} has {RULES_OF_NAMESPACE_MAX} rules already"
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn add(&mut self, rule: AccessRule, revision: u64) {
        self.rules.insert(rule.id.clone(), rule);
        self.changed = revision;
    }

    pub(super) fn remove(&mut self, ids: &[RuleId], revision: u64) {
        for id in ids {
            self.rules.remove(id);
        }
        self.changed = revision;
    }

    /// What a gateway is told that has this revision, or none: every rule, the oldest first, if one has changed.
    pub(super) fn since(&self, known: Option<u64>) -> Option<Vec<KnownRule>> {
        if known.is_some_and(|known| known >= self.changed) {
            return None;
        }
        Some(self.all().iter().rev().map(told).collect())
    }

    /// Checks once more what a caller was admitted by, whose request may have begun long ago. Returns when the first of
    /// its rules expires, in seconds since the Unix epoch.
    ///
    /// # Errors
    /// `unauthorized` if a rule was removed, or it or the token has expired since.
    pub(super) fn recheck(&self, caller: &Caller, now_unix_s: i64) -> Result<Option<i64>, ApiError> {
        let ended = |what: String| {
            let message = format!("{what} while the request went on: nothing was changed");
            ApiError::new(ErrorCode::Unauthorized, message)
        };
        if let Credential::Identity {
            name,
            expires_unix_s: Some(end),
        } = &caller.credential
            && *end <= now_unix_s
        {
            return Err(ended(format!("what {name} has shown has expired")));
        }
        let mut first_end = None;
        for id in caller.grants.iter().filter_map(|grant| grant.rule.as_ref()) {
            let rule = self
                .rules
                .get(id)
                .ok_or_else(|| ended(format!("the rule {id} was removed")))?;
            match rule.expires_unix_s {
                Some(end) if end <= now_unix_s => return Err(ended(format!("the rule {id} expired"))),
                end => first_end = first_end.into_iter().chain(end).min(),
            }
        }
        Ok(first_end)
    }
}

fn told(rule: &AccessRule) -> KnownRule {
    KnownRule {
        id: rule.id.clone(),
        admits: rule.admits.clone(),
        role: rule.role,
        scope: rule.scope(),
        expires_unix_s: rule.expires_unix_s,
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::access::{AccessRole, Admitted, Grant};

    use super::*;

    fn rule(namespace: &str, expires_unix_s: Option<i64>) -> AccessRule {
        AccessRule {
            id: RuleId::generate(),
            admits: Admitted::Certificate("CN=ci".parse().unwrap()),
            role: AccessRole::Deployer,
            namespace: Some(namespace.parse().unwrap()),
            function: None,
            created_by: "admin".to_owned(),
            created_unix_s: 7,
            expires_unix_s,
        }
    }

    #[test]
    fn a_gateway_is_told_every_rule_when_one_has_changed() {
        let mut table = RuleTable::new(vec![rule("team", None)]);
        assert_eq!(table.since(None).unwrap().len(), 1);
        assert_eq!(table.since(Some(0)), None);
        let added = rule("team", None);
        table.add(added.clone(), 3);
        assert_eq!(table.since(Some(2)).unwrap().len(), 2);
        assert_eq!(table.since(Some(3)), None);
        table.remove(&[added.id], 4);
        assert_eq!(table.since(Some(3)).unwrap().len(), 1);
    }

    #[test]
    fn who_was_admitted_is_refused_once_a_rule_is_gone_or_the_token_has_ended() {
        let rules = [rule("team", Some(100)), rule("other", None)];
        let grants = rules.iter().map(|rule| Grant {
            rule: Some(rule.id.clone()),
            role: rule.role,
            scope: rule.scope(),
        });
        let caller = Caller::with_identity("cert:CN=ci".to_owned(), Some(90), grants.collect());
        let mut table = RuleTable::new(rules.to_vec());
        assert_eq!(table.recheck(&caller, 89).unwrap(), Some(100));
        assert_eq!(table.recheck(&Caller::platform(), 1_000).unwrap(), None);
        let refused = |table: &RuleTable, caller: &Caller, now| table.recheck(caller, now).unwrap_err().message;
        assert!(refused(&table, &caller, 90).contains("cert:CN=ci has shown has expired"));
        let lasting = Caller {
            credential: Credential::Identity {
                name: "cert:CN=ci".to_owned(),
                expires_unix_s: None,
            },
            ..caller.clone()
        };
        assert!(refused(&table, &lasting, 100).contains("expired"));
        table.remove(&[rules[1].id.clone()], 1);
        assert!(refused(&table, &caller, 89).contains("was removed"));
    }

    #[test]
    fn a_namespace_s_rules_leave_others_room() {
        let table = RuleTable::new((0..RULES_OF_NAMESPACE_MAX).map(|_| rule("team", None)).collect());
        let refused = table.check_room(Some(&"team".parse().unwrap())).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        table.check_room(Some(&"other".parse().unwrap())).unwrap();
        table.check_room(None).unwrap();
        let full = RuleTable::new((0..RULES_MAX).map(|n| rule(&format!("n{n}"), None)).collect());
        full.check_room(None).unwrap_err();
    }
}
