//! Renews the instances of functions with `fresh`: each request gets a copy of the snapshot that has served none.
//!
//! ```text
//! request leaves ──> the used copy is put back (`reset`) ──> Ready
//!                └─> or it is killed ──> another is restored ──> Ready
//! next request   ──> waits for that, if it comes sooner
//! ```
//!
//! A copy is marked as used before its request reaches it. Whoever finds the mark renews the instance first.

use std::fmt;
use std::sync::Arc;

use rekindle_wire::ApiError;
use tokio::runtime::Handle;
use tokio::time::Instant as Deadline;
use tracing::Instrument as _;

use super::lifecycle::Instance;
use super::running::RunningInstance;
use super::start::Starter;

/// Renews an instance when it is dropped.
pub(super) struct Renewal {
    starter: Arc<Starter>,
    instance: Arc<Instance>,
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Renewal").field(&self.instance.id).finish()
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        begin(&self.starter, &self.instance);
    }
}

/// Waits for a copy that has served nothing, and marks it as used. Returns it with what renews the instance afterwards.
///
/// # Errors
/// Returns why there is none, or `unavailable` if `deadline` passes first.
pub(super) async fn unused(
    starter: &Arc<Starter>,
    instance: &Arc<Instance>,
    deadline: Deadline,
) -> Result<(Arc<RunningInstance>, Renewal), ApiError> {
    loop {
        let running = instance.until_ready(deadline).await?;
        if running.use_once() {
            let renewal = Renewal {
                starter: Arc::clone(starter),
                instance: Arc::clone(instance),
            };
            return Ok((running, renewal));
        }
        begin(starter, instance);
    }
}

/// Renews an instance in the background, if its copy is used. Without a runtime the worker is ending.
fn begin(starter: &Arc<Starter>, instance: &Arc<Instance>) {
    let Some(used) = instance.take_used() else { return };
    let Ok(runtime) = Handle::try_current() else { return };
    let (starter, instance) = (Arc::clone(starter), Arc::clone(instance));
    let span = tracing::info_span!(
        "renew",
        "rekindle.role" = "worker",
        faas.invoked_name = %instance.spec.function,
        faas.instance = %instance.id,
        rekindle.fresh.by = tracing::field::Empty,
        rekindle.pages = tracing::field::Empty,
        rekindle.unfit = tracing::field::Empty,
    );
    let renew = async move { starter.renew(&instance, used).await };
    runtime.spawn(renew.instrument(span));
}
