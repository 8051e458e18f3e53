//! The end of an instance that was ready: detects and explains it, and tears the instance down in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rekindle_init::protocol::ExitCause;
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::watch;

use super::{Instance, InstanceStage, RunningInstance};
use crate::host::netlink_memory::{LIMIT as NETLINK_LIMIT, NetlinkMemory};
use crate::host::sandbox::FunctionState;
use crate::worker::Worker;

/// Kills the processes inside, waits for their end, then releases the rest: a control group can be removed only when
/// empty.
pub(crate) async fn tear_down(parts: Arc<RunningInstance>) {
    let ended = tokio::task::spawn_blocking(move || {
        parts.kill();
        parts.sandbox.end();
        drop(parts);
    });
    // The task does not panic, so the only possible failure is the shutdown of the runtime.
    let _ = ended.await;
}

/// Waits until the first process of the instance's parts ends, reports why, and removes the instance from the worker.
/// Does neither if the instance has been renewed since, more than `renewals` times.
pub(super) async fn watch_end(
    instance: Arc<Instance>,
    renewals: u64,
    mut ended: watch::Receiver<FunctionState>,
    worker: Arc<Worker>,
) {
    let state = match ended.wait_for(|s| *s != FunctionState::Alive).await {
        Ok(state) => *state,
        Err(_) => FunctionState::SandboxGone,
    };
    let parts = {
        let mut parts = instance.parts.lock();
        if instance.renewals.load(Ordering::Relaxed) != renewals {
            return;
        }
        parts.take()
    };
    instance.usage.close();
    if let Some(parts) = parts {
        let error = instance
            .verdict
            .lock()
            .clone()
            .unwrap_or_else(|| cause(&instance, &parts, state));
        instance.sink.platform(&error.message);
        if let (ErrorCode::SnapshotLost, Some(snapshot)) = (error.code, &instance.spec.snapshot) {
            worker.snapshots.forget(snapshot);
            crate::instance::damage::examine(&worker, &instance, snapshot);
        }
        instance.stage.send_replace(InstanceStage::Ended(Some(error)));
        tear_down(parts).await;
    }
    worker.remove_this(&instance);
}

fn cause(instance: &Instance, parts: &RunningInstance, state: FunctionState) -> ApiError {
    let before = instance.oom_kills_before.load(Ordering::Relaxed);
    let oom_kills = parts.cgroup.oom_kills().unwrap_or(0).saturating_sub(before);
    if oom_kills > 0 && may_be_an_oom_kill(state) {
        let limit = instance.spec.manifest.memory;
        return ApiError::new(
            ErrorCode::FunctionOutOfMemory,
            format!("the function used more than its memory limit of {limit} and was killed; raise memory in fn.toml"),
        );
    }
    let how = match state {
        FunctionState::Ended(cause) => cause.to_string(),
        FunctionState::Alive | FunctionState::SandboxGone => "lost its sandbox".to_owned(),
    };
    let memory = match oom_kills {
        0 => "",
        _ => ", after another of its processes was killed at the memory limit",
    };
    let tail = instance
        .sink
        .tail(1)
        .pop()
        .map(|l| format!("; its last line: {}", l.text))
        .unwrap_or_default();
    ApiError::new(
        ErrorCode::FunctionCrashed,
        format!("the function's process {how}{memory}{tail}"),
    )
}

impl Instance {
    /// Kills it if it holds more netlink messages than it may.
    pub(crate) fn limit_netlink(&self, memory: &NetlinkMemory) {
        let Some(sandbox) = self.running_sandbox() else { return };
        // An instance that ends meanwhile holds nothing.
        let Ok(Some(held)) = memory.beyond(sandbox.init_pid()) else {
            return;
        };
        let message = format!(
            "the function's netlink sockets held {} MiB of messages that it had not read, more than {} MiB, and it was \
             killed: read them, or close the sockets",
            held >> 20,
            NETLINK_LIMIT >> 20
        );
        self.kill(ApiError::new(ErrorCode::FunctionOutOfMemory, message));
    }
}

/// Returns whether the kernel may have killed the function for its memory. A function that exits by itself has at most
/// seen the death of a child.
fn may_be_an_oom_kill(state: FunctionState) -> bool {
    match state {
        FunctionState::Ended(ExitCause::Signal(signal)) => signal == nix::sys::signal::Signal::SIGKILL as i32,
        FunctionState::Ended(ExitCause::Code(_)) => false,
        FunctionState::Alive | FunctionState::SandboxGone => true,
    }
}
