//! Parking: freezes an instance that nobody uses, until its next request thaws it.
//!
//! ```text
//! park     mark it frozen ──► no request in flight? ──► freeze ──► Parked
//! request  enter ──► is it marked frozen? ──► wait for whoever parks it ──► thaw ──► Ready
//! ```
//!
//! Each side writes its own mark before it reads the other's, so one of the two gives way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_wire::{ApiError, ErrorCode};
use tracing::Instrument as _;

use super::lifecycle::{Instance, InstanceStage, gone};
use super::running::RunningInstance;
use super::thaw_order::{ThawedChildren, hold_parents};
use crate::errors::unavailable;
use crate::host::cgroup::FreezeError;

/// The outcome of parking an instance.
#[derive(Debug)]
pub enum Parking {
    /// It is frozen.
    Parked,
    /// It serves a request, or is not ready.
    Busy,
    /// It has ended.
    Gone,
    /// The kernel could not freeze it. It keeps running.
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
        let Some(running) = self.running() else {
            return Parking::Gone;
        };
        running.mark_frozen();
        if self.usage.in_flight() > 0 {
            running.mark_thawed();
            return Parking::Busy;
        }
        // A function may close idle connections on its own timer, which would expire the moment it is thawed.
        running.client.close_idle();
        // It has lost its connection with that.
        drop(running.reset.lock().take());
        let freezing = Arc::clone(&running);
        // The task does not panic, so the only possible failure is the shutdown of the runtime.
        let freeze = move || {
            freezing.cgroup.freeze()?;
            *freezing.children.lock() = hold_parents(&freezing.cgroup);
            Ok(())
        };
        let frozen = tokio::task::spawn_blocking(freeze).await;
        match frozen {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                running.mark_thawed();
                tracing::warn!(instance = %self.id, error = &error as &dyn std::error::Error, "not parked");
                return Parking::Failed(error);
            }
            Err(_) => return Parking::Gone,
        }
        // Whoever kills it thaws it, but maybe before it was frozen to the end. Frozen processes cannot die.
        let is_killed = !running.is_frozen();
        if is_killed || !self.step(|s| matches!(s, InstanceStage::Ready), InstanceStage::Parked) {
            running.mark_frozen();
            running.thaw();
            return match &*self.stage() {
                InstanceStage::Ended(_) => Parking::Gone,
                _ => Parking::Busy,
            };
        }
        Parking::Parked
    }

    /// Thaws it if it was parked, and returns how long that took. Only a request that is in flight in it may call this.
    ///
    /// # Errors
    /// Returns `instance_gone` when it is to stop, or `unavailable` when the kernel refuses.
    pub async fn unpark(self: &Arc<Self>, running: &Arc<RunningInstance>) -> Result<Option<Duration>, ApiError> {
        if !running.is_frozen() {
            return Ok(None);
        }
        let span = tracing::info_span!("thaw", "rekindle.role" = "worker");
        self.thaw(running).instrument(span).await.map(Some)
    }

    /// Like [`Self::unpark`], until all processes go on and the platform has no connections that wake them.
    ///
    /// # Errors
    /// The same as [`Self::unpark`].
    pub async fn unpark_whole(self: &Arc<Self>, running: &Arc<RunningInstance>) -> Result<(), ApiError> {
        self.unpark(running).await?;
        let thawing = running.thawing.lock().take();
        if let Some(thawing) = thawing {
            // The task does not panic, so the only possible failure is the shutdown of the runtime.
            drop(thawing.await);
        }
        Ok(())
    }

    async fn thaw(self: &Arc<Self>, running: &Arc<RunningInstance>) -> Result<Duration, ApiError> {
        let since = Instant::now();
        let _alone = self.parking.lock().await;
        if !running.is_frozen() {
            // Another request was faster.
            return Ok(since.elapsed());
        }
        running.cgroup.thaw().map_err(|e| {
            let told = unavailable("let the parked instance go on", &e);
            ApiError::new(ErrorCode::Unavailable, told.message)
        })?;
        running.mark_thawed();
        if let Some(children) = running.children.lock().take() {
            let going_on = children_first(children, Arc::clone(self), Arc::clone(running));
            *running.thawing.lock() = Some(tokio::spawn(going_on));
        }
        match self.step(|s| matches!(s, InstanceStage::Parked), InstanceStage::Ready) {
            true => Ok(since.elapsed()),
            false => Err(gone()),
        }
    }
}

/// Lets the parents of a thawed instance go on once their children have had their turn.
async fn children_first(children: ThawedChildren, instance: Arc<Instance>, running: Arc<RunningInstance>) {
    children.take_turn(&running.sandbox, instance.spec.config.port).await;
    // The task does not panic, so the only possible failure is the shutdown of the runtime.
    let released = tokio::task::spawn_blocking(move || running.cgroup.release()).await;
    if let Ok(Err(e)) = released {
        tracing::error!(instance = %instance.id, error = &e as &dyn std::error::Error, "processes stay frozen");
    }
}
