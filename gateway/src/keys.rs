//! The platform's own key, and the keys and rules of access that the scheduler tells of.
//!
//! A gateway knows every key by its hash, so that no request waits for the scheduler. It follows changes, and refuses
//! these keys when it has heard nothing for a minute: one of them may be revoked by now.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use http::HeaderMap;
use parking_lot::RwLock;
use rekindle_wire::access::{Caller, KeyId, id_in};
use rekindle_wire::clock::unix_s;
use rekindle_wire::headers::bearer;
use rekindle_wire::internal::{KeysResponse, KnownKey};
use rekindle_wire::{ApiError, ErrorCode};

use crate::key::KeyHash;
use crate::rules::Rules;

/// How long keys are taken after the last news of them.
const HEARD_WITHIN: Duration = Duration::from_secs(60);
/// A use is told if the last one that was told is this long ago, in seconds.
const TELL_AFTER_S: i64 = 60;

/// Everybody who may call.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Whom tokens and certificates let in.
    pub(crate) rules: Rules,
    platform: KeyHash,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    epoch: String,
    revision: u64,
    heard: Option<Instant>,
    keys: HashMap<KeyId, CachedKey>,
}

#[derive(Debug)]
struct CachedKey {
    hash: blake3::Hash,
    caller: Caller,
    expires_unix_s: Option<i64>,
    /// When it was used last, in seconds since the Unix epoch; 0 if never.
    used: AtomicI64,
}

impl Table {
    fn check_heard(&self) -> Result<(), ApiError> {
        match self.heard {
            Some(heard) if heard.elapsed() <= HEARD_WITHIN => Ok(()),
            _ => Err(ApiError::new(
                ErrorCode::Unavailable,
                "the scheduler does not tell which keys and rules are valid: try again; if it lasts, see its log",
            )),
        }
    }
}

impl Keys {
    /// Knows the platform's own key.
    pub(crate) fn new(platform: KeyHash) -> Self {
        Self {
            rules: Rules::default(),
            platform,
            table: RwLock::default(),
        }
    }

    /// The lead and the revision of what is known.
    pub(crate) fn revision(&self) -> (String, u64) {
        let table = self.table.read();
        (table.epoch.clone(), table.revision)
    }

    /// Applies what the scheduler tells.
    pub(crate) fn apply(&self, told: KeysResponse) {
        let mut table = self.table.write();
        let mut before = match told.whole {
            true => std::mem::take(&mut table.keys),
            false => HashMap::new(),
        };
        (table.epoch, table.revision) = (told.epoch, told.revision);
        table.heard = Some(Instant::now());
        for id in &told.revoked {
            table.keys.remove(id);
        }
        for key in told.keys {
            let id = key.id.clone();
            let used = before.remove(&id).map_or_else(AtomicI64::default, |known| known.used);
            // A hash that cannot be read fits no key.
            if let Some(known) = known(key, used) {
                table.keys.insert(id, known);
            }
        }
        if let Some(rules) = told.rules {
            self.rules.apply(rules);
        }
    }

    /// When keys were used last, if that is news compared with what was `told`.
    pub(crate) fn used(&self, told: &BTreeMap<KeyId, i64>) -> BTreeMap<KeyId, i64> {
        let table = self.table.read();
        let used = table
            .keys
            .iter()
            .map(|(id, known)| (id, known.used.load(Ordering::Relaxed)));
        let is_news = |(id, at): &(&KeyId, i64)| *at > 0 && told.get(*id).is_none_or(|told| at - told >= TELL_AFTER_S);
        used.filter(is_news).map(|(id, at)| (id.clone(), at)).collect()
    }

    /// Whether there is such a key.
    pub(crate) fn knows(&self, id: &KeyId) -> bool {
        self.table.read().keys.contains_key(id)
    }

    /// The caller whose key the headers carry. `None` if they carry none of the platform's.
    ///
    /// # Errors
    /// If the key is revoked, unknown, expired, or cannot be judged now.
    pub(crate) fn shown(&self, headers: &HeaderMap) -> Result<Option<Caller>, ApiError> {
        let Some(key) = bearer(headers) else {
            return Ok(None);
        };
        if self.platform.fits(key) {
            return Ok(Some(Caller::platform()));
        }
        let Some(id) = id_in(key) else {
            return Ok(None);
        };
        let table = self.table.read();
        table.check_heard()?;
        let hash = blake3::hash(key);
        let Some(known) = table.keys.get(&id).filter(|known| known.hash == hash) else {
            return Err(ApiError::new(
                ErrorCode::Unauthorized,
                format!("the key {id} is not valid: it was revoked, is another platform's, or is not written in full"),
            ));
        };
        let now = unix_s();
        if known.expires_unix_s.is_some_and(|end| end <= now) {
            return Err(ApiError::new(
                ErrorCode::Unauthorized,
                format!("the key {id} has expired: an admin makes another with `fn key create`"),
            ));
        }
        known.used.store(now, Ordering::Relaxed);
        Ok(Some(known.caller.clone()))
    }

    /// Refuses to judge keys and rules when nothing was heard of them for long.
    ///
    /// # Errors
    /// `unavailable`.
    pub(crate) fn check_heard(&self) -> Result<(), ApiError> {
        self.table.read().check_heard()
    }
}

fn known(key: KnownKey, used: AtomicI64) -> Option<CachedKey> {
    Some(CachedKey {
        hash: blake3::Hash::from_hex(&key.hash).ok()?,
        caller: Caller::with_key(key.id, key.role, key.scope),
        expires_unix_s: key.expires_unix_s,
        used,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::AUTHORIZATION;
    use rekindle_wire::access::{AccessRole, generate};

    use super::*;

    fn told(keys: Vec<KnownKey>, whole: bool, revoked: &[&KeyId]) -> KeysResponse {
        KeysResponse {
            epoch: "lead".to_owned(),
            revision: 1,
            whole,
            keys,
            revoked: revoked.iter().map(|id| (*id).clone()).collect(),
            rules: None,
        }
    }

    fn new(expires_unix_s: Option<i64>) -> (KnownKey, String) {
        let (id, key) = generate();
        let known = KnownKey {
            id,
            hash: blake3::hash(key.as_bytes()).to_hex().to_string(),
            role: AccessRole::Reader,
            scope: "*.team".parse().unwrap(),
            expires_unix_s,
        };
        (known, key)
    }

    fn sends(key: &str) -> HeaderMap {
        let value = HeaderValue::from_str(&format!("Bearer {key}")).unwrap();
        HeaderMap::from_iter([(AUTHORIZATION, value)])
    }

    fn asked(keys: &Keys, key: &str) -> Result<AccessRole, ErrorCode> {
        let shown = keys.shown(&sends(key)).map_err(|e| e.code)?;
        shown.map(|caller| caller.grants[0].role).ok_or(ErrorCode::Unauthorized)
    }

    #[test]
    fn a_key_is_taken_until_it_is_revoked_or_expires() {
        let keys = Keys::new(KeyHash::of("platform"));
        let refused = Err(ErrorCode::Unauthorized);
        let (first, key) = new(None);
        assert_eq!(asked(&keys, &key), Err(ErrorCode::Unavailable), "nothing is heard yet");
        assert_eq!(asked(&keys, "platform"), Ok(AccessRole::Admin));
        let (second, another) = new(Some(unix_s() + 60));
        let (third, expired) = new(Some(unix_s()));
        keys.apply(told(vec![first.clone(), second, third], true, &[]));
        assert_eq!(asked(&keys, &key), Ok(AccessRole::Reader));
        assert_eq!(asked(&keys, &another), Ok(AccessRole::Reader));
        assert_eq!(asked(&keys, &expired), refused);
        for wrong in [
            "",
            "x",
            &generate().1,
            &key.to_uppercase(),
            &key.replace("fnk_", "fnk-"),
        ] {
            assert_eq!(asked(&keys, wrong), refused, "{wrong}");
        }
        // The right id with another secret.
        let forged = format!("{}{}", &key[..21], "0".repeat(64));
        assert_eq!(asked(&keys, &forged), refused);
        assert!(keys.shown(&HeaderMap::new()).unwrap().is_none());
        keys.apply(told(Vec::new(), false, &[&first.id]));
        assert_eq!(asked(&keys, &key), refused);
        assert_eq!(asked(&keys, &another), Ok(AccessRole::Reader));
        keys.apply(told(Vec::new(), true, &[]));
        assert_eq!(asked(&keys, &another), refused);
    }

    #[test]
    fn keys_are_not_taken_when_nothing_is_heard_for_a_minute() {
        let keys = Keys::new(KeyHash::of("platform"));
        let (known, key) = new(None);
        keys.apply(told(vec![known], true, &[]));
        keys.table.write().heard = Instant::now().checked_sub(HEARD_WITHIN + Duration::from_secs(1));
        assert_eq!(asked(&keys, &key), Err(ErrorCode::Unavailable));
        assert_eq!(asked(&keys, "platform"), Ok(AccessRole::Admin));
        keys.apply(told(Vec::new(), false, &[]));
        assert_eq!(asked(&keys, &key), Ok(AccessRole::Reader));
    }

    #[test]
    fn a_use_is_told_once_a_minute() {
        let keys = Keys::new(KeyHash::of("platform"));
        let (known, key) = new(None);
        let id = known.id.clone();
        keys.apply(told(vec![known.clone()], true, &[]));
        assert!(keys.used(&BTreeMap::new()).is_empty());
        asked(&keys, &key).unwrap();
        let used = keys.used(&BTreeMap::new());
        assert_eq!(used.keys().collect::<Vec<_>>(), [&id]);
        assert!(keys.used(&used).is_empty());
        keys.apply(told(vec![known], true, &[]));
        let long_ago = BTreeMap::from([(id, used.values().min().unwrap() - TELL_AFTER_S)]);
        assert_eq!(keys.used(&long_ago), used);
    }
}
