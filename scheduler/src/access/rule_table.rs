//! The rules of access in memory.

use std::collections::BTreeMap;

use rekindle_wire::access::{AccessRole, CLOCK_LEEWAY_S, Caller, Credential, RuleId, Scope};
use rekindle_wire::api::AccessRule;
use rekindle_wire::internal::KnownRule;
use rekindle_wire::{ApiError, ErrorCode, Namespace};

/// Maximum number of rules: a gateway compares a token with each of its issuer's.
const RULES_MAX: usize = 1_000;
/// Maximum number of rules of one namespace, so that its admin leaves others room.
const RULES_OF_NAMESPACE_MAX: usize = 100;
/// Maximum number of rules of all namespaces together, so that they leave the platform's admins room.
const RULES_OF_NAMESPACES_MAX: usize = 900;

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
        let of_some = |rule: &&AccessRule| rule.namespace.is_some();
        if namespace.is_some() && self.rules.values().filter(of_some).count() >= RULES_OF_NAMESPACES_MAX {
            return full(format!(
                "there are {RULES_OF_NAMESPACES_MAX} rules of namespaces already"
            ));
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

    /// Checks once more that a rule gives the caller a role, whose request may have begun long ago. Returns when the
    /// last rule that does expires, in seconds since the Unix epoch. What other rules say of the caller does not count:
    /// they may be another namespace's.
    ///
    /// # Errors
    /// `unauthorized` if no such rule is left, or the token has expired since.
    pub(super) fn recheck(
        &self,
        caller: &Caller,
        role: AccessRole,
        scope: &Scope,
        now_unix_s: i64,
    ) -> Result<Option<i64>, ApiError> {
        let ended = |what: String| {
            let message = format!("{what} while the request went on: nothing was changed");
            ApiError::new(ErrorCode::Unauthorized, message)
        };
        if let Credential::Identity {
            name,
            expires_unix_s: Some(end),
        } = &caller.credential
            && end.saturating_add(i64::from(CLOCK_LEEWAY_S)) <= now_unix_s
        {
            return Err(ended(format!("what {name} has shown has expired")));
        }
        caller.check(role, scope)?;
        let (mut last_end, mut why) = (None, String::new());
        for grant in caller.giving(role, scope) {
            // Not by a rule: the platform's own key.
            let Some(id) = &grant.rule else { return Ok(None) };
            match self.rules.get(id).map(|rule| rule.expires_unix_s) {
                Some(None) => return Ok(None),
                Some(Some(end)) if end > now_unix_s => last_end = last_end.max(Some(end)),
                Some(_) => why = format!("the rule {id} expired"),
                None => why = format!("the rule {id} was removed"),
            }
        }
        match last_end {
            Some(end) => Ok(Some(end)),
            None => Err(ended(why)),
        }
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
    use rekindle_wire::access::{Admitted, Grant};

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

    fn admitted(rules: &[AccessRule], expires_unix_s: Option<i64>) -> Caller {
        let grants = rules.iter().map(|rule| Grant {
            rule: Some(rule.id.clone()),
            role: rule.role,
            scope: rule.scope(),
        });
        Caller::with_identity("cert:CN=ci".to_owned(), expires_unix_s, grants.collect())
    }

    fn recheck(table: &RuleTable, caller: &Caller, scope: &str, now: i64) -> Result<Option<i64>, String> {
        let checked = table.recheck(caller, AccessRole::Deployer, &scope.parse().unwrap(), now);
        checked.map_err(|error| error.message)
    }

    #[test]
    fn who_was_admitted_is_refused_once_its_rule_is_gone_or_the_token_has_ended() {
        let rules = [rule("team", Some(200)), rule("other", None)];
        let caller = admitted(&rules, Some(90));
        let mut table = RuleTable::new(rules.to_vec());
        assert_eq!(recheck(&table, &caller, "*.team", 89), Ok(Some(200)));
        assert_eq!(recheck(&table, &Caller::platform(), "*", 1_000), Ok(None));
        assert_eq!(recheck(&table, &caller, "*.team", 119), Ok(Some(200)), "clocks differ");
        let ended = recheck(&table, &caller, "*.team", 120).unwrap_err();
        assert!(ended.contains("cert:CN=ci has shown has expired"), "{ended}");
        let lasting = admitted(&rules, None);
        assert!(
            recheck(&table, &lasting, "*.team", 200)
                .unwrap_err()
                .contains("expired")
        );
        assert!(
            recheck(&table, &lasting, "*.third", 89)
                .unwrap_err()
                .contains("needs the role")
        );
        table.remove(&[rules[0].id.clone()], 1);
        let removed = recheck(&table, &lasting, "hello.team", 89).unwrap_err();
        assert!(removed.contains("was removed"), "{removed}");
    }

    #[test]
    fn a_rule_of_another_namespace_ends_nothing_elsewhere() {
        let rules = [rule("evil", Some(100)), rule("team", None)];
        let caller = admitted(&rules, None);
        let mut table = RuleTable::new(rules.to_vec());
        assert_eq!(recheck(&table, &caller, "*.team", 89), Ok(None));
        assert_eq!(recheck(&table, &caller, "*.team", 101), Ok(None));
        table.remove(&[rules[0].id.clone()], 1);
        assert_eq!(recheck(&table, &caller, "*.team", 89), Ok(None));
        // Of several that give the same, the one that lasts counts.
        let function = AccessRule {
            function: Some("hello".parse().unwrap()),
            role: AccessRole::Admin,
            ..rule("team", Some(500))
        };
        let rules = [rule("team", Some(300)), function];
        let caller = admitted(&rules, None);
        let table = RuleTable::new(rules.to_vec());
        assert_eq!(recheck(&table, &caller, "hello.team", 299), Ok(Some(500)));
        assert_eq!(recheck(&table, &caller, "hello.team", 300), Ok(Some(500)));
        assert_eq!(recheck(&table, &caller, "other.team", 299), Ok(Some(300)));
    }

    #[test]
    fn a_namespace_s_rules_leave_others_room() {
        let table = RuleTable::new((0..RULES_OF_NAMESPACE_MAX).map(|_| rule("team", None)).collect());
        let refused = table.check_room(Some(&"team".parse().unwrap())).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        table.check_room(Some(&"other".parse().unwrap())).unwrap();
        table.check_room(None).unwrap();
        let of_namespaces = (0..RULES_OF_NAMESPACES_MAX).map(|n| rule(&format!("n{n}"), None));
        let mut full = RuleTable::new(of_namespaces.collect());
        full.check_room(Some(&"other".parse().unwrap())).unwrap_err();
        full.check_room(None).unwrap();
        for _ in RULES_OF_NAMESPACES_MAX..RULES_MAX {
            let own = AccessRule {
                namespace: None,
                ..rule("any", None)
            };
            full.add(own, 1);
        }
        full.check_room(None).unwrap_err();
    }
}
