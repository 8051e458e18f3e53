//! Instances that serve nobody: booted for a snapshot alone, or restored to rehearse it.

use std::sync::Arc;

use rekindle_wire::InstanceId;

use crate::worker::Worker;

/// An instance that the scheduler is not told of: it sends nobody there, and another scheduler than the one that
/// ordered it cannot take it for one that serves.
pub(crate) struct UnlistedInstance {
    worker: Arc<Worker>,
    instance: InstanceId,
}

impl UnlistedInstance {
    /// One that is about to be started.
    pub(crate) fn new(worker: &Arc<Worker>, instance: &InstanceId) -> Self {
        worker.unlisted.lock().insert(instance.clone());
        Self {
            worker: Arc::clone(worker),
            instance: instance.clone(),
        }
    }

    /// Ends it, if it is there.
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
