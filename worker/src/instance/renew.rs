//! Renews the instances of functions with `fresh`: each request gets a copy of the snapshot that has served none.
//!
//! ```text
//! request leaves ──> the used copy is killed ──> another is restored ──> Ready
//! next request   ──> waits for that, if it comes sooner
//! ```
//!
//! A copy is marked as used before its request reaches it. Whoever finds the mark renews the instance first.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rekindle_wire::ApiError;
use tokio::runtime::Handle;
use tokio::time::Instant as Deadline;
use tracing::Instrument as _;

use super::end::tear_down;
use super::{Instance, InstanceStage, RunningInstance, start};
use crate::worker::Worker;

/// Renews an instance when it is dropped.
pub(super) struct Renewal {
    worker: Arc<Worker>,
    instance: Arc<Instance>,
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Renewal").field(&self.instance.id).finish()
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        begin(&self.worker, &self.instance);
    }
}

/// Waits for a copy that has served nothing, and marks it as used. Returns it with what renews the instance afterwards.
///
/// # Errors
/// Returns why there is none, or `unavailable` if `deadline` passes first.
pub(super) async fn unused(
    worker: &Arc<Worker>,
    instance: &Arc<Instance>,
    deadline: Deadline,
) -> Result<(Arc<RunningInstance>, Renewal), ApiError> {
    loop {
        let parts = instance.until_ready(deadline).await?;
        if !parts.used.swap(true, Ordering::SeqCst) {
            let renewal = Renewal {
                worker: Arc::clone(worker),
                instance: Arc::clone(instance),
            };
            return Ok((parts, renewal));
        }
        begin(worker, instance);
    }
}

/// Renews an instance in the background, if its copy is used. Without a runtime the worker is ending.
fn begin(worker: &Arc<Worker>, instance: &Arc<Instance>) {
    let Some(used) = instance.take_used() else { return };
    let Ok(runtime) = Handle::try_current() else { return };
    let (worker, instance) = (Arc::clone(worker), Arc::clone(instance));
    let span = tracing::info_span!(
        "renew",
        "rekindle.role" = "worker",
        faas.invoked_name = %instance.spec.function,
        faas.instance = %instance.id,
    );
    let renew = async move {
        tokio::join!(tear_down(used), start::again(&worker, &instance));
    };
    runtime.spawn(renew.instrument(span));
}

impl Instance {
    /// Returns the name of the next sandbox: that of the one before may still be in use.
    pub(crate) fn sandbox_name(&self) -> String {
        match self.renewals.load(Ordering::Relaxed) {
            0 => self.id.to_string(),
            renewals => format!("{}-{renewals}", self.id),
        }
    }

    /// Takes out a used copy, and waits for another from then on.
    fn take_used(&self) -> Option<Arc<RunningInstance>> {
        let mut taken = None;
        self.stage.send_if_modified(|stage| {
            if matches!(stage, InstanceStage::Ready | InstanceStage::Parked) {
                let mut parts = self.parts.lock();
                taken = parts.take_if(|parts| parts.used.load(Ordering::SeqCst));
                if taken.is_some() {
                    self.renewals.fetch_add(1, Ordering::Relaxed);
                    self.settled.send_replace(false);
                    *stage = InstanceStage::Starting;
                }
            }
            taken.is_some()
        });
        taken
    }
}
