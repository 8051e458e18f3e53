//! Keys of namespaces whose snapshots are encrypted. Each is made once, is sealed by the master key in the database,
//! and goes with its namespace. Whatever is left of its snapshots anywhere cannot be read from then on. Workers get it
//! with each order for a function of the namespace. Decision 68 says why.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rekindle_envelope::{MasterKey, OpenError, random_key};
use rekindle_snapshotter::Keyring;
use rekindle_wire::snapshot_key::SNAPSHOT_KEY;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, Namespace, SnapshotKey};

use crate::store::{Store, StoreError};

/// A namespace's key, or why it cannot be read.
type UnsealedKey = Result<SnapshotKey, OpenError>;

/// The keys of all namespaces that have one.
pub(crate) struct NamespaceKeys {
    master: MasterKey,
    keys: Mutex<BTreeMap<String, UnsealedKey>>,
    /// What collections read encrypted snapshots with.
    pub(crate) ring: Keyring,
}

impl NamespaceKeys {
    /// Those in the database.
    pub(crate) async fn read(store: &Store, master: MasterKey) -> Result<Self, StoreError> {
        let seals = Self {
            master,
            keys: Mutex::default(),
            ring: Keyring::default(),
        };
        for (namespace, sealed) in store.snapshot_keys().await? {
            let opened = seals.open(&namespace, &sealed);
            if let Err(error) = &opened {
                tracing::error!(
                    %namespace,
                    error = error as &dyn std::error::Error,
                    "the key of a namespace's snapshots cannot be read: none of its instances can be restored; restart \
                     the scheduler with the master key that sealed it"
                );
            }
            seals.set(&namespace, opened);
        }
        Ok(seals)
    }

    /// Whether new snapshots of a namespace are encrypted.
    pub(crate) fn has(&self, namespace: &str) -> bool {
        self.keys.lock().contains_key(namespace)
    }

    /// Whether a snapshot whose maker had this key may be recorded. One that was ordered before the namespace was
    /// encrypted, and made after, is in the clear.
    pub(crate) fn may_record(&self, function: &FunctionId, key: Option<&SnapshotKey>) -> bool {
        key.is_some() || !self.has(function.namespace())
    }

    /// The key of a function's snapshots, if they are encrypted.
    ///
    /// # Errors
    /// If it was sealed with another master key.
    pub(crate) fn of(&self, function: &FunctionId) -> Result<Option<SnapshotKey>, ApiError> {
        let namespace = function.namespace();
        match self.keys.lock().get(namespace) {
            None => Ok(None),
            Some(Ok(key)) => Ok(Some(key.clone())),
            Some(Err(error)) => Err(ApiError::new(
                ErrorCode::SecretUnavailable,
                format!(
                    "snapshots of the namespace {namespace} are encrypted with a key that cannot be read: {error}; \
                     restart the scheduler with that master key's file"
                ),
            )),
        }
    }

    /// Forgets the key of a namespace that was removed.
    pub(crate) fn forget(&self, namespace: &Namespace) {
        self.keys.lock().remove(namespace.as_str());
        self.ring.set(namespace.as_str(), None);
    }

    pub(super) fn set(&self, namespace: &Namespace, opened: UnsealedKey) {
        self.ring.set(namespace.as_str(), opened.as_ref().ok());
        self.keys.lock().insert(namespace.as_str().to_owned(), opened);
    }

    /// A new key, sealed.
    pub(super) fn make(&self, namespace: &Namespace) -> Result<Vec<u8>, ApiError> {
        let failed = || ApiError::new(ErrorCode::Internal, "no random numbers are to be had for a key");
        let key: [u8; SNAPSHOT_KEY] = random_key().map_err(|_| failed())?;
        self.master.seal(&owner(namespace), &key).map_err(|_| failed())
    }

    pub(super) fn open(&self, namespace: &Namespace, sealed: &[u8]) -> UnsealedKey {
        let key = self.master.open(&owner(namespace), sealed)?;
        SnapshotKey::new(&key).map_err(|_| OpenError::Form)
    }
}

/// What a key is sealed for. No secret has this name.
fn owner(namespace: &Namespace) -> String {
    format!("{namespace}/snapshots")
}
