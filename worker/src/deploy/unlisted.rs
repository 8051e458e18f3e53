//! Instances that serve no requests: booted only for a snapshot, or restored to rehearse it.

use std::sync::Arc;

use rekindle_wire::InstanceId;

use crate::worker::Worker;

/// An instance that is not reported to the scheduler. So it sends no request there, and a scheduler other than the one
/// that ordered the instance cannot take it for one that serves.
pub(crate) struct UnlistedInstance {
    worker: Arc<Worker>,
    instance: InstanceId,
}

impl UnlistedInstance {
    /// Registers an instance that is about to be started.
    pub(crate) fn new(worker: &Arc<Worker>, instance: &InstanceId) -> Self {
        worker.unlisted.lock().insert(instance.clone());
        Self {
            worker: Arc::clone(worker),
            instance: instance.clone(),
        }
    }

    /// Ends it, if it exists.
    pub(crate) async fn end(self, why: &str) {
        if let Some(instance) = self.worker.instance(&self.instance) {
            instance.stop(why).await;
            self.worker.remove(&self.instance);
        }
    }
}

impl Drop for UnlistedInstance {
    fn drop(&mut self) {
        self.worker.unlisted.lock().remove(&self.instance);
    }
}
