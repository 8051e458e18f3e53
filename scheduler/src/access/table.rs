//! The keys in memory, and what has changed of them and of the rules of access since any revision.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rekindle_wire::access::{AccessRole, Caller, Credential, KeyId, RuleId, Scope};
use rekindle_wire::api::{AccessRule, KeySummary};
use rekindle_wire::internal::{KeysResponse, KnownKey};
use rekindle_wire::{ApiError, ErrorCode, Namespace};

use super::rule_table::RuleTable;
use crate::followed::RevisionTracker;
use crate::store::StoredKey;

/// Maximum number of keys: each gateway holds them in memory.
const KEYS_MAX: usize = 10_000;
/// Maximum number of keys of one namespace, so that its admin leaves others room.
const KEYS_OF_NAMESPACE_MAX: usize = 1_000;
/// Number of changes that are remembered. A gateway that lacks more is told everything.
const CHANGES_MAX: usize = 1_000;

pub(crate) struct Keys {
    /// What gateways know of them.
    pub(crate) followed: RevisionTracker,
    /// Held while keys or namespaces are changed in the database and then in memory, so that both see the same order.
    pub(crate) changing: tokio::sync::Mutex<()>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    keys: BTreeMap<KeyId, StoredKey>,
    rules: RuleTable,
    revision: u64,
    changes: BTreeMap<u64, KeyId>,
    /// Changes up to this revision are not remembered.
    forgotten: u64,
    /// Uses that are not written yet.
    used: BTreeMap<KeyId, i64>,
}

impl Table {
    fn count(&mut self, id: KeyId) {
        self.revision += 1;
        self.changes.insert(self.revision, id);
        while self.changes.len() > CHANGES_MAX
            && let Some((oldest, _)) = self.changes.pop_first()
        {
            self.forgotten = oldest;
        }
    }
}

impl Keys {
    /// Those in the database.
    pub(crate) fn new(stored: Vec<StoredKey>, rules: Vec<AccessRule>) -> Self {
        let table = Table {
            keys: stored.into_iter().map(|key| (key.summary.id.clone(), key)).collect(),
            rules: RuleTable::new(rules),
            ..Table::default()
        };
        Self {
            followed: RevisionTracker::default(),
            changing: tokio::sync::Mutex::default(),
            table: Mutex::new(table),
        }
    }

    /// Every key, the newest first.
    pub(crate) fn all(&self) -> Vec<KeySummary> {
        let mut all: Vec<_> = self.table.lock().keys.values().map(|key| key.summary.clone()).collect();
        all.sort_by(|a, b| (b.created_unix_s, &b.id).cmp(&(a.created_unix_s, &a.id)));
        all
    }

    /// Refuses one more key if there are too many.
    ///
    /// # Errors
    /// `conflict`.
    pub(super) fn check_room(&self, namespace: Option<&Namespace>) -> Result<(), ApiError> {
        let table = self.table.lock();
        let full = |what: String| {
            let message = format!("{what}: revoke those that are not used any more (`fn key list`)");
            Err(ApiError::new(ErrorCode::Conflict, message))
        };
        if table.keys.len() >= KEYS_MAX {
            return full(format!("there are {KEYS_MAX} keys already"));
        }
        let Some(namespace) = namespace else { return Ok(()) };
        let own = table
            .keys
            .values()
            .filter(|key| key.summary.namespace.as_ref() == Some(namespace));
        match own.count() >= KEYS_OF_NAMESPACE_MAX {
            true => full(format!(
                "the namespace {namespace} has {KEYS_OF_NAMESPACE_MAX} keys already"
            )),
            false => Ok(()),
        }
    }

    /// Adds a key. Returns the new revision.
    pub(super) fn add(&self, key: StoredKey) -> u64 {
        let mut table = self.table.lock();
        table.count(key.summary.id.clone());
        table.keys.insert(key.summary.id.clone(), key);
        table.revision
    }

    /// Removes keys. Returns the new revision.
    pub(super) fn remove(&self, ids: &[KeyId]) -> u64 {
        let mut table = self.table.lock();
        for id in ids {
            table.keys.remove(id);
            table.used.remove(id);
            table.count(id.clone());
        }
        table.revision
    }

    /// Every rule of access, the newest first.
    pub(crate) fn rules(&self) -> Vec<AccessRule> {
        self.table.lock().rules.all()
    }

    /// Refuses one more rule if there are too many.
    ///
    /// # Errors
    /// `conflict`.
    pub(super) fn check_room_for_rule(&self, namespace: Option<&Namespace>) -> Result<(), ApiError> {
        self.table.lock().rules.check_room(namespace)
    }

    /// Adds a rule. Returns the new revision.
    pub(super) fn add_rule(&self, rule: AccessRule) -> u64 {
        let mut table = self.table.lock();
        table.revision += 1;
        let revision = table.revision;
        table.rules.add(rule, revision);
        revision
    }

    /// Removes rules. Returns the new revision.
    pub(super) fn remove_rules(&self, ids: &[RuleId]) -> u64 {
        let mut table = self.table.lock();
        table.revision += 1;
        let revision = table.revision;
        table.rules.remove(ids, revision);
        revision
    }

    /// Checks once more that a caller has a role, whose request may have begun long ago. Returns when the key or the
    /// rule that gives it expires, in seconds since the Unix epoch.
    ///
    /// # Errors
    /// `unauthorized` if that was revoked or has expired since, `forbidden` if the caller never had the role.
    pub(crate) fn recheck(
        &self,
        caller: &Caller,
        role: AccessRole,
        scope: &Scope,
        now_unix_s: i64,
    ) -> Result<Option<i64>, ApiError> {
        let table = self.table.lock();
        let Credential::Key(id) = &caller.credential else {
            return table.rules.recheck(caller, role, scope, now_unix_s);
        };
        caller.check(role, scope)?;
        let ended = |what: &str| {
            let message = format!("the key {id} {what} while the request went on: nothing was changed");
            ApiError::new(ErrorCode::Unauthorized, message)
        };
        let known = table.keys.get(id).ok_or_else(|| ended("was revoked"))?;
        match known.summary.expires_unix_s {
            Some(end) if end <= now_unix_s => Err(ended("expired")),
            end => Ok(end),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.table.lock().revision
    }

    /// What a gateway lacks that has this revision, or none.
    pub(crate) fn since(&self, known: Option<u64>) -> KeysResponse {
        let table = self.table.lock();
        let known = known.filter(|known| (table.forgotten..=table.revision).contains(known));
        let mut answer = KeysResponse {
            epoch: self.followed.epoch.clone(),
            revision: table.revision,
            whole: known.is_none(),
            keys: Vec::new(),
            revoked: Vec::new(),
            rules: table.rules.since(known),
        };
        match known {
            None => answer.keys = table.keys.values().map(told).collect(),
            Some(known) => {
                for id in table.changes.range(known.saturating_add(1)..).map(|(_, id)| id) {
                    match table.keys.get(id) {
                        Some(key) => answer.keys.push(told(key)),
                        None => answer.revoked.push(id.clone()),
                    }
                }
            }
        }
        answer
    }

    /// Notes when keys were used.
    pub(crate) fn note_used(&self, used: BTreeMap<KeyId, i64>) {
        let mut table = self.table.lock();
        let Table {
            keys, used: unwritten, ..
        } = &mut *table;
        for (id, at) in used {
            let Some(key) = keys.get_mut(&id) else { continue };
            if key.summary.used_unix_s.is_none_or(|before| before < at) {
                key.summary.used_unix_s = Some(at);
                unwritten.insert(id, at);
            }
        }
    }

    /// Takes the uses that are not written yet.
    pub(crate) fn take_used(&self) -> BTreeMap<KeyId, i64> {
        std::mem::take(&mut self.table.lock().used)
    }

    /// Takes uses back that could not be written.
    pub(crate) fn not_noted(&self, used: BTreeMap<KeyId, i64>) {
        let mut table = self.table.lock();
        for (id, at) in used {
            let newest = table.used.entry(id).or_insert(at);
            *newest = at.max(*newest);
        }
    }
}

fn told(key: &StoredKey) -> KnownKey {
    KnownKey {
        id: key.summary.id.clone(),
        hash: key.hash.to_hex().to_string(),
        role: key.summary.role,
        scope: key.scope(),
        expires_unix_s: key.summary.expires_unix_s,
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::access::generate;

    use super::*;

    fn key(namespace: Option<&str>) -> StoredKey {
        let (id, key) = generate();
        StoredKey {
            hash: blake3::hash(key.as_bytes()),
            summary: KeySummary {
                id,
                name: String::new(),
                role: AccessRole::Reader,
                namespace: namespace.map(|n| n.parse().unwrap()),
                function: None,
                created_by: "admin".to_owned(),
                created_unix_s: 7,
                expires_unix_s: None,
                used_unix_s: None,
            },
        }
    }

    fn ids(answer: &KeysResponse) -> (bool, usize, usize) {
        (answer.whole, answer.keys.len(), answer.revoked.len())
    }

    #[test]
    fn a_gateway_is_told_what_it_lacks() {
        let stored = [key(None), key(None)];
        let first = stored[0].summary.id.clone();
        let keys = Keys::new(stored.into(), Vec::new());
        assert_eq!(ids(&keys.since(None)), (true, 2, 0));
        let added = keys.add(key(None));
        assert_eq!(ids(&keys.since(Some(0))), (false, 1, 0));
        assert_eq!(ids(&keys.since(Some(added))), (false, 0, 0));
        let removed = keys.remove(std::slice::from_ref(&first));
        let told = keys.since(Some(added));
        assert_eq!((ids(&told), &told.revoked[..]), ((false, 0, 1), &[first][..]));
        assert_eq!(told.revision, removed);
        assert!(keys.since(Some(removed + 1)).whole, "a revision that never was");
    }

    #[test]
    fn a_key_that_was_revoked_or_has_expired_is_refused_when_its_request_goes_on() {
        let mut own = key(Some("team"));
        own.summary.expires_unix_s = Some(100);
        let id = own.summary.id.clone();
        let caller = Caller::with_key(id.clone(), AccessRole::Deployer, own.scope());
        let keys = Keys::new(vec![own], Vec::new());
        let scope = "*.team".parse().unwrap();
        let recheck = |caller: &Caller, now| keys.recheck(caller, AccessRole::Deployer, &scope, now);
        assert_eq!(recheck(&caller, 99).unwrap(), Some(100));
        assert_eq!(recheck(&Caller::platform(), 100).unwrap(), None);
        let expired = recheck(&caller, 100).unwrap_err();
        let beyond = keys.recheck(&caller, AccessRole::Admin, &scope, 99).unwrap_err();
        assert_eq!(beyond.code, ErrorCode::Forbidden);
        keys.remove(&[id]);
        let revoked = recheck(&caller, 99).unwrap_err();
        for error in [expired, revoked] {
            assert_eq!(error.code, ErrorCode::Unauthorized, "{error}");
        }
    }

    #[test]
    fn what_changed_long_ago_is_told_with_everything_else() {
        let keys = Keys::new(Vec::new(), Vec::new());
        let kept = key(None);
        keys.add(kept.clone());
        for _ in 0..CHANGES_MAX {
            let gone = key(None);
            keys.add(gone.clone());
            keys.remove(&[gone.summary.id]);
        }
        assert_eq!(keys.table.lock().changes.len(), CHANGES_MAX);
        assert_eq!(ids(&keys.since(Some(1))), (true, 1, 0));
        let recent = keys.since(Some(keys.revision() - 2));
        assert_eq!(ids(&recent), (false, 0, 2), "one change, twice");
    }

    #[test]
    fn a_namespace_s_keys_leave_others_room() {
        let keys = Keys::new(
            (0..KEYS_OF_NAMESPACE_MAX).map(|_| key(Some("team"))).collect(),
            Vec::new(),
        );
        let team = "team".parse().unwrap();
        let refused = keys.check_room(Some(&team)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        keys.check_room(Some(&Namespace::default())).unwrap();
        keys.check_room(None).unwrap();
        let keys = Keys::new((0..KEYS_MAX).map(|_| key(None)).collect(), Vec::new());
        keys.check_room(None).unwrap_err();
    }

    #[test]
    fn the_last_use_is_written_once_and_again_if_that_failed() {
        let stored = key(None);
        let id = stored.summary.id.clone();
        let keys = Keys::new(vec![stored], Vec::new());
        let at = |at| BTreeMap::from([(id.clone(), at)]);
        keys.note_used(at(9));
        keys.note_used(at(8));
        keys.note_used(BTreeMap::from([(generate().0, 9)]));
        assert_eq!(keys.all()[0].used_unix_s, Some(9));
        let taken = keys.take_used();
        assert_eq!(taken, at(9));
        assert!(keys.take_used().is_empty());
        keys.note_used(at(12));
        keys.not_noted(taken);
        assert_eq!(keys.take_used(), at(12));
    }
}
