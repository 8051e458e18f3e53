//! All instances on this worker.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rekindle_wire::{ApiError, ErrorCode, InstanceId};
use tokio::sync::Notify;

use super::lifecycle::Instance;

/// The instances, by id.
#[derive(Default)]
pub struct Instances {
    all: Mutex<HashMap<InstanceId, Arc<Instance>>>,
    /// Those that serve no requests and are reported to nobody.
    unlisted: Mutex<HashSet<InstanceId>>,
    /// Notified when the scheduler should hear of a change at once.
    pub changed: Notify,
    is_draining: AtomicBool,
}

impl Instances {
    /// Returns an instance by id.
    pub fn get(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.all.lock().get(id).cloned()
    }

    /// Returns all instances.
    pub fn all(&self) -> Vec<Arc<Instance>> {
        self.all.lock().values().cloned().collect()
    }

    /// Returns those that are reported to the scheduler.
    pub fn listed(&self) -> Vec<Arc<Instance>> {
        let mut instances = self.all();
        let unlisted = self.unlisted.lock().clone();
        instances.retain(|instance| !unlisted.contains(&instance.id));
        instances
    }

    /// Adds an instance. Returns `false` if its id is taken.
    pub fn add(&self, instance: &Arc<Instance>) -> bool {
        let mut all = self.all.lock();
        if all.contains_key(&instance.id) {
            return false;
        }
        all.insert(instance.id.clone(), Arc::clone(instance));
        true
    }

    /// Adds an instance in the place of the one with its id.
    pub(crate) fn replace(&self, instance: &Arc<Instance>) {
        self.all.lock().insert(instance.id.clone(), Arc::clone(instance));
        self.changed.notify_one();
    }

    /// Removes an instance and notifies the scheduler. Another that has its id by now stays: one that has migrated here
    /// again, or was started in its place.
    pub fn remove_this(&self, instance: &Arc<Instance>) {
        let mut all = self.all.lock();
        if all.get(&instance.id).is_some_and(|known| Arc::ptr_eq(known, instance)) {
            all.remove(&instance.id);
        }
        drop(all);
        self.changed.notify_one();
    }

    /// Keeps the instance with this id, which may be about to start, from being reported.
    pub(crate) fn hide(&self, id: &InstanceId) {
        self.unlisted.lock().insert(id.clone());
    }

    pub(crate) fn unhide(&self, id: &InstanceId) {
        self.unlisted.lock().remove(id);
    }

    /// Says that no new instances are accepted.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Checks that new instances are accepted.
    ///
    /// # Errors
    /// `unavailable` if the worker is drained.
    pub fn check_accepting(&self) -> Result<(), ApiError> {
        if !self.is_draining.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::Unavailable,
            "the worker is drained and takes no instances: name another, or `fn undrain` it",
        ))
    }
}
