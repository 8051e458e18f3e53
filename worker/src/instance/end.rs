//! The end of an instance that was ready: detects and explains it, and tears the instance down in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rekindle_init::protocol::ExitCause;
use rekindle_wire::function_config::ByteSize;
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::watch;

use super::damage::DamageExaminer;
use super::isolate::shm_limit;
use super::lifecycle::Instance;
use super::registry::Instances;
use super::running::RunningInstance;
use crate::host::netlink_memory::{LIMIT as NETLINK_LIMIT, NetlinkMemory};
use crate::host::sandbox::FunctionState;

/// Watches over instances that are ready.
pub struct Supervisor {
    instances: Arc<Instances>,
    damage: Arc<DamageExaminer>,
}

impl Supervisor {
    /// Creates it. `damage` hears of snapshots of which a page is lost.
    pub fn new(instances: Arc<Instances>, damage: Arc<DamageExaminer>) -> Self {
        Self { instances, damage }
    }

    /// Makes `instance` ready with what runs of it: it begins to accept requests. Watches for its end. Tears it down if
    /// it was asked to stop in the meantime.
    pub async fn ready(self: &Arc<Self>, instance: &Arc<Instance>, running: Arc<RunningInstance>) {
        let (ready_after, ended) = (Arc::clone(&running.ready_after), running.sandbox.function_state());
        let is_watched = running.was_put_back();
        ready_after.store(instance.renewals(), Ordering::SeqCst);
        match instance.become_ready(running) {
            Ok(()) => {
                // A copy that was put back is as it was reported.
                if !is_watched {
                    self.instances.changed.notify_one();
                }
                // Whoever watches it may have seen its end while it was not ready.
                if !is_watched || *ended.borrow() != FunctionState::Alive {
                    tokio::spawn(Arc::clone(self).watch_end(Arc::clone(instance), ready_after, ended));
                }
            }
            Err(unwanted) => unwanted.tear_down().await,
        }
    }

    /// Waits until the instance's first process ends, reports why, and removes the instance from the worker. Does
    /// neither if the instance has been renewed since, more than `ready_after` times.
    async fn watch_end(
        self: Arc<Self>,
        instance: Arc<Instance>,
        ready_after: Arc<AtomicU64>,
        mut ended: watch::Receiver<FunctionState>,
    ) {
        let state = match ended.wait_for(|s| *s != FunctionState::Alive).await {
            Ok(state) => *state,
            Err(_) => FunctionState::SandboxGone,
        };
        let Some(running) = instance.ended(ready_after.load(Ordering::SeqCst), state) else {
            return;
        };
        if let Some(running) = running {
            let error = instance.verdict().unwrap_or_else(|| cause(&instance, &running, state));
            instance.sink.platform(&error.message);
            if let (ErrorCode::SnapshotLost, Some(snapshot)) = (error.code, &instance.spec.snapshot) {
                self.damage.examine(&instance, snapshot);
            }
            instance.tell_end(error);
            running.tear_down().await;
        }
        self.instances.remove_this(&instance);
    }
}

fn cause(instance: &Instance, running: &RunningInstance, state: FunctionState) -> ApiError {
    let oom_kills = instance.oom_kills(running);
    if oom_kills > 0 && may_be_an_oom_kill(state) {
        let limit = instance.spec.config.memory;
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
        format!(
            "the function's process {how}{}{memory}{tail}",
            full_shm(instance, state)
        ),
    )
}

/// Says how the first process of an instance ended, whose platform has not killed it, before `what`. `oom_kills` of its
/// processes were killed at the memory limit.
pub(crate) fn ended_before(what: &str, instance: &Instance, state: FunctionState, oom_kills: u64) -> String {
    if oom_kills > 0 && may_be_an_oom_kill(state) {
        let limit = instance.spec.config.memory;
        return format!(
            "used more than its memory limit of {limit} and was killed before {what}; raise memory in fn.toml"
        );
    }
    match state {
        FunctionState::Ended(cause) => format!("{cause} before {what}{}", full_shm(instance, state)),
        FunctionState::Alive | FunctionState::SandboxGone => format!("ended before {what}"),
    }
}

/// What may have been wrong with memory that is a file: the kernel kills a process whose page the file cannot have.
fn full_shm(instance: &Instance, state: FunctionState) -> String {
    match state {
        FunctionState::Ended(ExitCause::Signal(signal)) if signal == nix::sys::signal::Signal::SIGBUS as i32 => {
            format!(
                ", as it is where a file is too short, or /dev/shm is full: that has {}, a quarter of its memory",
                ByteSize(shm_limit(&instance.spec))
            )
        }
        _ => String::new(),
    }
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
