//! One running copy of a function version, and its life:
//!
//! ```text
//! Starting ──ready──> Ready <──> Capturing
//!    │                  │            │
//!    └──failed──┐       ├──idle, asked to stop, crashed, an invocation long overdue
//!               v       v
//!             Stopping ──> gone (out of the worker's books)
//! ```
//!
//! Requests that arrive while it is `Starting` or `Capturing` wait, within their deadline.

mod client;
pub mod enclosure;
pub mod overdue;
pub mod start;
mod usage;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_init::protocol::ExitCause;
use rekindle_pager::Pager;
use rekindle_wire::api::{InstanceInfo, InstanceState, StartKind};
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{ApiError, ErrorCode, InstanceId, WorkerId};
use tokio::sync::watch;
use tracing::Instrument;

use crate::cgroup::Cgroup;
use crate::logs::Sink;
use crate::sandbox::{FunctionState, Sandbox};
pub use client::{FunctionClient, PORT};
pub use usage::{Entry, InFlight, Usage};

/// What an instance is made of once it runs. Fields drop in order: the sandbox (which kills) before the pager (whose end
/// would let faults pass) before the control group (which must be empty).
pub struct Parts {
    /// Connections to it.
    pub client: FunctionClient,
    /// The walls around it.
    pub sandbox: Arc<Sandbox>,
    /// Who serves its page faults, when it was restored.
    pub pager: Option<Pager>,
    /// Its limits.
    pub cgroup: Arc<Cgroup>,
    /// Names of its output pipes, for a checkpoint.
    pub pipes: Vec<crate::snapshots::PipeNote>,
    /// The snapshot it came from, kept open.
    pub snapshot: Option<Arc<crate::snapshots::OpenSnapshot>>,
}

/// Where an instance stands, as those who wait for it see it.
#[derive(Debug, Clone)]
pub enum Stand {
    /// Not ready yet.
    Starting,
    /// Takes requests.
    Ready,
    /// Being checkpointed.
    Capturing,
    /// Takes no requests any more; why, when it failed.
    Ended(Option<ApiError>),
}

/// One running copy.
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// What it runs.
    pub spec: VersionSpec,
    /// Restored or booted.
    pub kind: Mutex<StartKind>,
    /// How long its start took, once known.
    pub start_took: Mutex<Option<Duration>>,
    /// The phases of its start, as they ended.
    pub phases: Mutex<Vec<(&'static str, Duration)>>,
    /// Requests in it.
    pub usage: Usage,
    /// What it writes.
    pub sink: Sink,
    stand: watch::Sender<Stand>,
    parts: Mutex<Option<Arc<Parts>>>,
    created: Instant,
    /// Why it is being killed, when the platform does it.
    verdict: Mutex<Option<ApiError>>,
}

impl Instance {
    /// A new instance that has nothing yet.
    pub fn new(id: InstanceId, spec: VersionSpec, kind: StartKind, sink: Sink) -> Arc<Self> {
        Arc::new(Self {
            id,
            spec,
            kind: Mutex::new(kind),
            start_took: Mutex::new(None),
            phases: Mutex::default(),
            usage: Usage::default(),
            sink,
            stand: watch::Sender::new(Stand::Starting),
            parts: Mutex::new(None),
            created: Instant::now(),
            verdict: Mutex::new(None),
        })
    }

    /// Runs a phase of its start, as a span and as a line of `Server-Timing`.
    pub async fn phase<T>(&self, name: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let span = tracing::info_span!("phase", otel.name = name);
        let done = work.instrument(span).await;
        self.phases.lock().push((name, started.elapsed()));
        done
    }

    /// What it is made of; `None` before it runs and after it ended.
    pub fn parts(&self) -> Option<Arc<Parts>> {
        self.parts.lock().clone()
    }

    /// Its parts are there and it takes requests. Watches for its end from now on.
    pub fn ready(self: &Arc<Self>, parts: Arc<Parts>, worker: &Arc<crate::worker::Worker>) {
        let ended = parts.sandbox.function_state();
        *self.parts.lock() = Some(parts);
        *self.start_took.lock() = Some(self.created.elapsed());
        self.usage.touch();
        self.stand.send_replace(Stand::Ready);
        worker.changed.notify_one();
        tokio::spawn(watch_end(Arc::clone(self), ended, Arc::clone(worker)));
    }

    /// Its start failed.
    pub fn failed(&self, error: ApiError) {
        self.sink.platform(format!("not started: {}", error.message));
        self.stand.send_replace(Stand::Ended(Some(error)));
    }

    /// From `Ready` to `Capturing` and back; requests wait meanwhile.
    pub fn set_capturing(&self, capturing: bool) {
        self.stand.send_if_modified(|stand| {
            let next = match (&stand, capturing) {
                (Stand::Ready, true) => Stand::Capturing,
                (Stand::Capturing, false) => Stand::Ready,
                _ => return false,
            };
            *stand = next;
            true
        });
    }

    /// Waits until it takes requests.
    ///
    /// # Errors
    /// Why it cannot, or `unavailable` when `deadline` passes first.
    pub async fn until_ready(&self, deadline: tokio::time::Instant) -> Result<Arc<Parts>, ApiError> {
        let mut stand = self.stand.subscribe();
        let settled = stand.wait_for(|s| matches!(s, Stand::Ready | Stand::Ended(_)));
        match tokio::time::timeout_at(deadline, settled).await {
            Err(_) => Err(ApiError::new(
                ErrorCode::Unavailable,
                "the instance was not ready within the platform's limit for a start; look at `fn logs` and the worker's log",
            )),
            Ok(Err(_)) => Err(gone()),
            Ok(Ok(stand)) => match &*stand {
                Stand::Ended(why) => Err(why.clone().unwrap_or_else(gone)),
                _ => self.parts().ok_or_else(gone),
            },
        }
    }

    /// Whether it could end now without anybody noticing; it then takes no more requests.
    pub fn retire_if_idle(&self) -> bool {
        self.usage.close_if_idle()
    }

    /// Kills it because of `why`, which those who wait for an answer are told. Does not wait for its end; safe on any thread.
    pub fn kill(&self, why: ApiError) {
        self.verdict.lock().get_or_insert(why);
        if let Some(parts) = self.parts() {
            parts.sandbox.kill();
        }
    }

    /// Keeps why it is about to be killed by other means.
    pub fn judge(&self, why: ApiError) {
        self.verdict.lock().get_or_insert(why);
    }

    /// The verdict of a start that failed, which is not to be blamed on what is started in its place.
    pub fn take_verdict(&self) -> Option<ApiError> {
        self.verdict.lock().take()
    }

    /// Ends it and waits until its processes are gone.
    pub async fn stop(&self, why: &str) {
        self.usage.close();
        let parts = self.parts.lock().take();
        self.stand.send_if_modified(|stand| {
            let running = !matches!(stand, Stand::Ended(_));
            if running {
                *stand = Stand::Ended(None);
            }
            running
        });
        let Some(parts) = parts else { return };
        self.sink.platform(format!("stopped: {why}"));
        tear_down(parts).await;
    }

    /// Why its process ended, waiting a moment for the news; for a request that lost its connection.
    pub async fn end_reason(&self) -> ApiError {
        let mut stand = self.stand.subscribe();
        let ended = stand.wait_for(|s| matches!(s, Stand::Ended(_)));
        match tokio::time::timeout(Duration::from_millis(500), ended).await {
            Ok(Ok(stand)) => match &*stand {
                Stand::Ended(Some(why)) => why.clone(),
                _ => gone(),
            },
            _ => ApiError::new(
                ErrorCode::FunctionCrashed,
                "the function closed the connection before it had answered; look at `fn logs`",
            ),
        }
    }

    /// As shown in listings.
    pub fn info(&self, worker: &WorkerId) -> InstanceInfo {
        let state = match &*self.stand.borrow() {
            Stand::Starting => InstanceState::Starting,
            // It finishes what it serves, and takes nothing new.
            Stand::Ready if self.usage.has_overdue() => InstanceState::Stopping,
            Stand::Ready => InstanceState::Ready,
            Stand::Capturing => InstanceState::Capturing,
            Stand::Ended(_) => InstanceState::Stopping,
        };
        InstanceInfo {
            id: self.id.clone(),
            function: self.spec.function.clone(),
            version: self.spec.version,
            worker: worker.clone(),
            state,
            started: *self.kind.lock(),
            in_flight: self.usage.in_flight(),
            idle_ms: self.usage.idle_ms(),
            memory_bytes: self.parts().and_then(|p| p.cgroup.memory_current().ok()).unwrap_or(0),
        }
    }
}

/// The answer to a request for an instance that is no more: the gateway places it again.
pub fn gone() -> ApiError {
    ApiError::new(ErrorCode::InstanceGone, "the instance is gone")
}

/// Kills what is inside, waits for its end, then lets go of the rest: a control group can be removed only when empty.
async fn tear_down(parts: Arc<Parts>) {
    let ended = tokio::task::spawn_blocking(move || {
        parts.sandbox.end();
        drop(parts);
    });
    // It does not panic; the runtime going down is the only other way to fail.
    let _ = ended.await;
}

async fn watch_end(
    instance: Arc<Instance>,
    mut ended: watch::Receiver<FunctionState>,
    worker: Arc<crate::worker::Worker>,
) {
    let state = match ended.wait_for(|s| *s != FunctionState::Alive).await {
        Ok(state) => *state,
        Err(_) => FunctionState::SandboxGone,
    };
    instance.usage.close();
    let parts = instance.parts.lock().take();
    if let Some(parts) = parts {
        let error = instance
            .verdict
            .lock()
            .clone()
            .unwrap_or_else(|| cause(&instance, &parts, state));
        instance.sink.platform(&error.message);
        if let (ErrorCode::SnapshotLost, Some(snapshot)) = (error.code, &instance.spec.snapshot) {
            worker.snapshots.forget(snapshot);
            crate::damage::examine(&worker, &instance, snapshot);
        }
        instance.stand.send_replace(Stand::Ended(Some(error)));
        tear_down(parts).await;
    }
    worker.remove(&instance.id);
}

fn cause(instance: &Instance, parts: &Parts, state: FunctionState) -> ApiError {
    if parts.cgroup.oom_kills().unwrap_or(0) > 0 {
        let limit = instance.spec.manifest.memory;
        return ApiError::new(
            ErrorCode::FunctionOutOfMemory,
            format!("the function used more than its memory limit of {limit} and was killed; raise memory in fn.toml"),
        );
    }
    let how = match state {
        FunctionState::Ended(ExitCause::Code(code)) => format!("exited with code {code}"),
        FunctionState::Ended(ExitCause::Signal(signal)) => {
            let name = nix::sys::signal::Signal::try_from(signal).map_or("?", |s| s.as_str());
            format!("was killed by signal {signal} ({name})")
        }
        FunctionState::Alive | FunctionState::SandboxGone => "lost its sandbox".to_owned(),
    };
    let tail = instance
        .sink
        .tail(1)
        .pop()
        .map(|l| format!("; its last line: {}", l.text))
        .unwrap_or_default();
    ApiError::new(
        ErrorCode::FunctionCrashed,
        format!("the function's process {how}{tail}"),
    )
}
