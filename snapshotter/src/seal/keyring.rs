//! The keys that a process holds, in memory only.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use rekindle_wire::SnapshotKey;

use super::key::SealingKey;
use super::key_id::KeyId;

/// Keys of namespaces. There are at most as many as there are namespaces. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Keyring(Arc<Keys>);

#[derive(Debug, Default)]
struct Keys {
    held: RwLock<HeldKeys>,
    /// Whether there has been a key. A platform without any does nothing for encryption.
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct HeldKeys {
    by_namespace: HashMap<String, Arc<SealingKey>>,
    by_id: HashMap<KeyId, Arc<SealingKey>>,
}

impl Keyring {
    /// One that holds only this key.
    pub(super) fn of(key: &Arc<SealingKey>) -> Self {
        let ring = Self::default();
        ring.0.held.write().by_id.insert(key.id(), Arc::clone(key));
        ring.0.any.store(true, Ordering::Release);
        ring
    }

    /// Holds this key for a namespace in place of any other; without one, forgets the other.
    pub fn set(&self, namespace: &str, key: Option<&SnapshotKey>) {
        if key.is_none() && self.is_empty() {
            return;
        }
        let new = key.map(|key| Arc::new(SealingKey::new(key)));
        let mut held = self.0.held.write();
        let old = held.by_namespace.get(namespace).map(|old| old.id());
        if old == new.as_ref().map(|new| new.id()) {
            return;
        }
        if let Some(old) = old {
            held.by_namespace.remove(namespace);
            held.by_id.remove(&old);
        }
        if let Some(new) = new {
            self.0.any.store(true, Ordering::Release);
            held.by_id.insert(new.id(), Arc::clone(&new));
            held.by_namespace.insert(namespace.to_owned(), new);
        }
    }

    /// The key that new snapshots of a namespace are sealed with, if they are.
    pub fn of_namespace(&self, namespace: &str) -> Option<Arc<SealingKey>> {
        self.0.held.read().by_namespace.get(namespace).cloned()
    }

    /// The key with this id.
    pub fn get(&self, id: KeyId) -> Option<Arc<SealingKey>> {
        self.0.held.read().by_id.get(&id).cloned()
    }

    /// Whether there has never been a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.0.any.load(Ordering::Acquire)
    }
}
