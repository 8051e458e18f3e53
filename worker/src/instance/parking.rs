//! Parking: an instance that nobody uses is frozen, and thawed by the next request in it.
//!
//! ```text
//! park     say that it is frozen ──► no request in it? ──► freeze ──► Parked
//! request  enter ──► is it said to be frozen? ──► wait for whoever parks it ──► thaw ──► Ready
//! ```
//!
//! Each side says its own thing before it looks at the other's, so one of the two gives way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_wire::{ApiError, ErrorCode};
use tracing::Instrument as _;

use super::{Instance, InstanceStage, RunningInstance, gone};
use crate::host::cgroup::FreezeError;
use crate::instance::isolated_process::unavailable;

/// What became of an instance that was to be parked.
#[derive(Debug)]
pub enum Parking {
    /// It stands still.
    Parked,
    /// It serves a request, or is not ready.
    Busy,
    /// It has ended.
    Gone,
    /// The kernel could not bring it to a halt; it goes on.
    Failed(FreezeError),
}

impl Instance {
    /// Freezes it, unless it is in use.
    pub async fn park(self: &Arc<Self>) -> Parking {
        let _alone = self.parking.lock().await;
        match &*self.stage() {
            InstanceStage::Ready => {}
            InstanceStage::Parked => return Parking::Parked,
            InstanceStage::Starting | InstanceStage::Capturing | InstanceStage::Moving => return Parking::Busy,
            InstanceStage::Ended(_) => return Parking::Gone,
        }
        let Some(parts) = self.parts() else {
            return Parking::Gone;
        };
        parts.say_frozen();
        if self.usage.in_flight() > 0 {
            parts.say_thawed();
            return Parking::Busy;
        }
        // A function may close them on a timer of its own, which would run out the moment it goes on.
        parts.client.close_idle();
        let freezing = Arc::clone(&parts);
        // It does not panic; the runtime going down is the only other way to fail.
        let frozen = tokio::task::spawn_blocking(move || freezing.cgroup.freeze()).await;
        match frozen {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                parts.say_thawed();
                tracing::warn!(instance = %self.id, error = &error as &dyn std::error::Error, "not parked");
                return Parking::Failed(error);
            }
            Err(_) => return Parking::Gone,
        }
        if !self.step(|s| matches!(s, InstanceStage::Ready), InstanceStage::Parked) {
            parts.thaw();
            return Parking::Gone;
        }
        Parking::Parked
    }

    /// Lets it go on if it was parked, and answers how long that took. To be called by a request that is in it.
    ///
    /// # Errors
    /// `instance_gone` when it is to stop, `unavailable` when the kernel refuses.
    pub async fn unpark(&self, parts: &RunningInstance) -> Result<Option<Duration>, ApiError> {
        if !parts.is_frozen() {
            return Ok(None);
        }
        let span = tracing::info_span!("thaw", "rekindle.role" = "worker");
        self.thaw(parts).instrument(span).await.map(Some)
    }

    async fn thaw(&self, parts: &RunningInstance) -> Result<Duration, ApiError> {
        let since = Instant::now();
        let _alone = self.parking.lock().await;
        if !parts.is_frozen() {
            // Another request was faster.
            return Ok(since.elapsed());
        }
        parts.cgroup.thaw().map_err(|e| {
            let told = unavailable("let the parked instance go on", &e);
            ApiError::new(ErrorCode::Unavailable, told.message)
        })?;
        parts.say_thawed();
        match self.step(|s| matches!(s, InstanceStage::Parked), InstanceStage::Ready) {
            true => Ok(since.elapsed()),
            false => Err(gone()),
        }
    }
}
