//! Secrets of namespaces. They are sealed in the database and in memory, and opened only for whoever starts an
//! instance.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use rekindle_envelope::{MasterKey, OpenError, SealError};
use rekindle_wire::api::SecretSummary;
use rekindle_wire::function_config::FunctionConfig;
use rekindle_wire::secret::{self, SECRETS_MAX};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, Namespace, Secret, SecretName, SecretValue};

use crate::store::{Store, StoreError, StoredSecret};

type Sealed = BTreeMap<(Namespace, SecretName), StoredSecret>;

pub(crate) struct Secrets {
    key: MasterKey,
    /// Held while a secret is changed in the database and then in memory, so that both see the same order.
    pub(crate) changing: tokio::sync::Mutex<()>,
    sealed: Mutex<Sealed>,
    /// Instances that are being given other secrets.
    pub(super) changing_in: Mutex<BTreeSet<InstanceId>>,
}

impl Secrets {
    /// Those in the database.
    pub(crate) async fn read(store: &Store, key: MasterKey) -> Result<Self, StoreError> {
        let stored = store.secrets().await?.into_iter();
        let secrets = Self {
            key,
            changing: tokio::sync::Mutex::default(),
            changing_in: Mutex::default(),
            sealed: Mutex::new(stored.map(|(space, name, stored)| ((space, name), stored)).collect()),
        };
        let unreadable = secrets.unreadable();
        if !unreadable.is_empty() {
            tracing::error!(
                secrets = unreadable.join(", "),
                key = %secrets.key.id(),
                "secrets were sealed with another master key and cannot be read: put that key back, or set them again"
            );
        }
        Ok(secrets)
    }

    fn unreadable(&self) -> Vec<String> {
        let sealed = self.sealed.lock();
        let all = sealed
            .iter()
            .map(|((space, name), stored)| (owner(space, name), stored));
        all.filter(|(owner, stored)| self.key.open(owner, &stored.sealed).is_err())
            .map(|(owner, _)| owner)
            .collect()
    }

    /// A namespace's secrets, by name.
    pub(crate) fn list(&self, namespace: &Namespace) -> Vec<SecretSummary> {
        let sealed = self.sealed.lock();
        let own = sealed.iter().filter(|((space, _), _)| space == namespace);
        own.map(|((space, name), stored)| self.summary(space, name, stored))
            .collect()
    }

    /// The secrets that a function's config names, opened.
    ///
    /// # Errors
    /// If one is not set, or was sealed with another master key.
    pub(crate) fn of(&self, function: &FunctionId, config: &FunctionConfig) -> Result<Vec<Secret>, ApiError> {
        self.opened(function, config, |_| true)
    }

    /// Those of them that are set, opened.
    ///
    /// # Errors
    /// If one was sealed with another master key.
    pub(super) fn of_those_set(&self, function: &FunctionId, config: &FunctionConfig) -> Result<Vec<Secret>, ApiError> {
        self.opened(function, config, |is_set| is_set)
    }

    /// Why each secret that cannot be opened cannot.
    pub(crate) fn problems(&self, function: &FunctionId, names: &[SecretName]) -> Vec<String> {
        let opened = names.iter().map(|name| self.open_for(function, name));
        opened.filter_map(|opened| Some(opened.err()?.message)).collect()
    }

    fn opened(
        &self,
        function: &FunctionId,
        config: &FunctionConfig,
        wanted: impl Fn(bool) -> bool,
    ) -> Result<Vec<Secret>, ApiError> {
        let namespace = function.split().1.unwrap_or_default();
        let is_set = |name: &&SecretName| self.sealed.lock().contains_key(&(namespace.clone(), (*name).clone()));
        let names = config.secrets.iter().filter(|name| wanted(is_set(name)));
        names.map(|name| self.open_for(function, name)).collect()
    }

    fn open_for(&self, function: &FunctionId, name: &SecretName) -> Result<Secret, ApiError> {
        let namespace = function.split().1.unwrap_or_default();
        let unavailable = |why: String| ApiError::new(ErrorCode::SecretUnavailable, why);
        let sealed = self.sealed.lock();
        let stored = sealed.get(&(namespace.clone(), name.clone())).ok_or_else(|| {
            let in_namespace = format!("namespace {namespace}: set it with `fn secret set {name}`");
            unavailable(format!(
                "{function} needs the secret {name}, which is not set in {in_namespace}"
            ))
        })?;
        let value = self.open(&namespace, name, stored).map_err(|e| {
            let fix = format!("restart the scheduler with that key's file, or set it with `fn secret set {name}`");
            unavailable(format!(
                "{function} needs the secret {name}, which cannot be read: {e}; {fix}"
            ))
        })?;
        let value = SecretValue::new(&value).map_err(|e| unavailable(e.to_string()))?;
        Ok(Secret {
            name: name.clone(),
            version: stored.version,
            value,
        })
    }

    /// Tells those of a function's secrets that are set from those that an instance got earlier.
    pub(super) fn revision(&self, function: &FunctionId, config: &FunctionConfig) -> u64 {
        let namespace = function.split().1.unwrap_or_default();
        let sealed = self.sealed.lock();
        let stored = |name: &SecretName| sealed.get(&(namespace.clone(), name.clone()));
        let set = config.secrets.iter().filter_map(stored);
        secret::revision(set.map(|stored| stored.version))
    }

    /// A secret as users see it.
    pub(super) fn summary(&self, namespace: &Namespace, name: &SecretName, stored: &StoredSecret) -> SecretSummary {
        SecretSummary {
            name: name.clone(),
            version: stored.version,
            set_unix_s: stored.set_unix_s,
            readable: self.open(namespace, name, stored).is_ok(),
            used_by: Vec::new(),
        }
    }

    fn open(&self, namespace: &Namespace, name: &SecretName, stored: &StoredSecret) -> Result<Vec<u8>, OpenError> {
        self.key.open(&owner(namespace, name), &stored.sealed)
    }

    pub(super) fn seal(&self, namespace: &Namespace, name: &SecretName, value: &[u8]) -> Result<Vec<u8>, SealError> {
        self.key.seal(&owner(namespace, name), value)
    }

    /// Takes over what was stored.
    pub(super) fn set(&self, namespace: Namespace, name: SecretName, stored: StoredSecret) {
        self.sealed.lock().insert((namespace, name), stored);
    }

    /// Forgets what was removed.
    pub(super) fn remove(&self, namespace: Namespace, name: SecretName) {
        self.sealed.lock().remove(&(namespace, name));
    }

    /// Refuses what would be one too many, or a name that there must be and is not.
    pub(super) fn check(&self, namespace: &Namespace, name: &SecretName, existing: bool) -> Result<(), ApiError> {
        let sealed = self.sealed.lock();
        let is_there = sealed.contains_key(&(namespace.clone(), name.clone()));
        if existing && !is_there {
            return Err(unknown(name));
        }
        let others = sealed.keys().filter(|(space, _)| space == namespace).count();
        if !is_there && others >= SECRETS_MAX {
            let message =
                format!("the namespace {namespace} has {SECRETS_MAX} secrets: remove one with `fn secret rm`");
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        Ok(())
    }
}

/// What a secret is sealed for.
fn owner(namespace: &Namespace, name: &SecretName) -> String {
    format!("{namespace}/{name}")
}

/// The error for a secret that there is not.
pub(super) fn unknown(name: &SecretName) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("no secret {name}: `fn secret list` shows what is set, `fn secret set {name}` sets it"),
    )
}
