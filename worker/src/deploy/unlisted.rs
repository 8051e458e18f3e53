//! Instances that serve no requests: booted only for a snapshot, or restored to rehearse it.

use std::sync::Arc;

use rekindle_wire::InstanceId;

use crate::instance::Instances;

/// An instance that is not reported to the scheduler. So it sends no request there, and a scheduler other than the one
/// that ordered the instance cannot take it for one that serves.
pub(crate) struct UnlistedInstance {
    instances: Arc<Instances>,
    instance: InstanceId,
}

impl UnlistedInstance {
    /// Registers an instance that is about to be started.
    pub(crate) fn new(instances: &Arc<Instances>, instance: &InstanceId) -> Self {
        instances.hide(instance);
        Self {
            instances: Arc::clone(instances),
            instance: instance.clone(),
        }
    }

    pub(crate) async fn end(self, why: &str) {
        if let Some(instance) = self.instances.get(&self.instance) {
            instance.stop(why).await;
            self.instances.remove_this(&instance);
        }
    }
}

impl Drop for UnlistedInstance {
    fn drop(&mut self) {
        self.instances.unhide(&self.instance);
    }
}
