//! Memory for the images of a checkpoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::OwnedSemaphorePermit;

use super::isolate::memory_limit;
use super::lifecycle::Instance;
use super::running::RunningInstance;

/// Memory for what images say beside memory and files, bytes.
const DESCRIPTION: u64 = 64 << 20;
/// How long the function may take to be within its memory limit again. The kernel frees what the images took within
/// milliseconds.
const LOWER_LIMIT: Duration = Duration::from_secs(3);
const LOWER_PAUSE: Duration = Duration::from_millis(50);

/// More memory for the sandbox while its images exist. The images lie on a tmpfs or in the page cache, and what CRIU
/// and init write there is charged to their own control group. Without the extra memory, a checkpoint would kill a
/// function that uses more than half of its memory. The function runs on meanwhile: if it has taken more than its own
/// limit by the end, it is killed.
pub(crate) struct RoomForImages {
    instance: Arc<Instance>,
    running: Arc<RunningInstance>,
    /// Released after the memory limit is restored.
    alone: Option<OwnedSemaphorePermit>,
}

impl RoomForImages {
    /// What the sandbox may use while its images exist, in bytes. Images are no larger than what they are made of:
    /// memory and files, which the function's limit counts.
    pub(super) fn limit(instance: &Instance) -> u64 {
        memory_limit(&instance.spec)
            .saturating_mul(2)
            .saturating_add(DESCRIPTION)
    }

    pub(crate) fn give(
        instance: &Arc<Instance>,
        running: &Arc<RunningInstance>,
        alone: Option<OwnedSemaphorePermit>,
    ) -> Self {
        // The checkpoint of a small function succeeds without it.
        if let Err(e) = running.cgroup.raise_memory(Self::limit(instance)) {
            tracing::warn!(instance = %instance.id, error = %e, "no more memory for the checkpoint");
        }
        Self {
            instance: Arc::clone(instance),
            running: Arc::clone(running),
            alone,
        }
    }
}

impl Drop for RoomForImages {
    fn drop(&mut self) {
        let limit = memory_limit(&self.instance.spec);
        let (instance, running) = (Arc::clone(&self.instance), Arc::clone(&self.running));
        // If there is no such group any more, the instance has ended.
        let is_over = move |running: &RunningInstance| {
            running
                .cgroup
                .lower_memory(limit)
                .map_or_else(|e| e.is_missing(), |()| true)
        };
        if is_over(&running) {
            return;
        }
        let alone = self.alone.take();
        let until = Instant::now() + LOWER_LIMIT;
        let lowering = move || {
            while Instant::now() < until {
                std::thread::sleep(LOWER_PAUSE);
                if is_over(&running) {
                    return;
                }
            }
            tracing::warn!(instance = %instance.id, "a function took the memory for its checkpoint's images");
            instance.kill(ApiError::new(
                ErrorCode::FunctionOutOfMemory,
                format!(
                    "the function used more than its memory limit of {} while its checkpoint was stored, and was \
                     killed; raise memory in fn.toml",
                    instance.spec.config.memory
                ),
            ));
            drop(alone);
        };
        let thread = std::thread::Builder::new().name("memory-limit".to_owned());
        if thread.spawn(lowering).is_err() {
            self.instance.kill(ApiError::new(
                ErrorCode::Unavailable,
                "the host has no thread to limit the function's memory, and the function was killed: try again",
            ));
        }
    }
}
