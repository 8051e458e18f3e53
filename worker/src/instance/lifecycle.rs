//! One running instance of a function version, and the stages of its life.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::api::{InstanceInfo, InstanceState, StartKind};
use rekindle_wire::internal::{OrderTicket, VersionSpec};
use rekindle_wire::{ApiError, ErrorCode, InstanceId, Secret, WorkerId};
use tokio::sync::{Semaphore, watch};
use tracing::Instrument;

use super::chain::CallChains;
use super::reset_point::ResetPolicy;
use super::running::RunningInstance;
use super::usage::Usage;
use crate::host::sandbox::{FunctionState, Sandbox};
use crate::layers::LayerUse;
use crate::logs::Sink;

/// How long a stop waits for a start to end. A killed start ends within milliseconds, but a download runs to its end.
const START_END_LIMIT: Duration = Duration::from_secs(10);

/// The stage of an instance, as seen by those who wait for it.
#[derive(Debug, Clone)]
pub enum InstanceStage {
    /// Not ready yet.
    Starting,
    /// Accepts requests.
    Ready,
    /// Being checkpointed.
    Capturing,
    /// Frozen.
    Parked,
    /// Stopped, on its way to another host.
    Moving,
    /// Accepts no more requests. Contains the reason if it failed.
    Ended(Option<ApiError>),
}

/// One running instance.
pub struct Instance {
    /// The instance id.
    pub id: InstanceId,
    /// The function version that it runs.
    pub spec: VersionSpec,
    /// The start kind: restored or booted.
    pub kind: Mutex<StartKind>,
    /// Duration of its start, once known.
    pub start_took: Mutex<Option<Duration>>,
    /// The phases of its start, in the order in which they ended.
    pub phases: Mutex<Vec<(&'static str, Duration)>>,
    /// Parts of these phases.
    pub inner_phases: Mutex<Vec<(&'static str, Duration)>>,
    /// The requests in flight.
    pub usage: Usage,
    /// The calls between functions that led to its requests.
    pub(crate) chains: CallChains,
    /// Held by whoever makes images of it, until these are gone. Extra memory is lent for one checkpoint at a time.
    pub images: Arc<Semaphore>,
    /// Destination of its output.
    pub sink: Sink,
    stage: watch::Sender<InstanceStage>,
    running: Mutex<Option<Arc<RunningInstance>>>,
    /// How often it was renewed. Changes with `running`.
    renewals: AtomicU64,
    /// The sandbox that it is being started in. A stop kills this sandbox if the instance does not run yet.
    starting_in: Mutex<Weak<Sandbox>>,
    /// What the worker shows of the scheduler's order for it.
    pub(crate) ticket: Option<OrderTicket>,
    /// The values that it was given. One that has any is never published.
    pub(super) secrets: Mutex<Arc<[Secret]>>,
    /// The layers that its sandbox has mounted.
    files: OnceLock<[LayerUse; 2]>,
    /// Whether what it reads of its image is recorded.
    pub(super) records_files: AtomicBool,
    /// Whether resets of its copies are worth a try.
    pub(super) resets: ResetPolicy,
    /// Held by whoever freezes or thaws it.
    pub(super) parking: tokio::sync::Mutex<()>,
    /// Whether its start has ended, successfully or not.
    settled: watch::Sender<bool>,
    /// The number of processes that the kernel had killed at the memory limit when it became ready.
    oom_kills_before: AtomicU64,
    /// How its first process ended after it was ready.
    end: OnceLock<FunctionState>,
    created: Instant,
    /// Why the platform is killing it, if it is.
    verdict: Mutex<Option<ApiError>>,
}

impl Instance {
    /// Creates an instance that does not run yet.
    pub fn new(
        id: InstanceId,
        spec: VersionSpec,
        kind: StartKind,
        ticket: Option<OrderTicket>,
        sink: Sink,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            spec,
            ticket,
            kind: Mutex::new(kind),
            start_took: Mutex::new(None),
            phases: Mutex::default(),
            inner_phases: Mutex::default(),
            usage: Usage::default(),
            chains: CallChains::default(),
            images: Arc::new(Semaphore::new(1)),
            sink,
            stage: watch::Sender::new(InstanceStage::Starting),
            running: Mutex::new(None),
            renewals: AtomicU64::new(0),
            starting_in: Mutex::default(),
            secrets: Mutex::default(),
            files: OnceLock::new(),
            records_files: AtomicBool::new(false),
            resets: ResetPolicy::default(),
            parking: tokio::sync::Mutex::default(),
            settled: watch::Sender::new(false),
            oom_kills_before: AtomicU64::new(0),
            end: OnceLock::new(),
            created: Instant::now(),
            verdict: Mutex::new(None),
        })
    }

    /// Runs a phase of its start, recorded as a span and in `Server-Timing`.
    pub async fn phase<T>(&self, name: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let span = tracing::info_span!("phase", otel.name = name, "rekindle.role" = "worker");
        let done = work.instrument(span).await;
        self.phases.lock().push((name, started.elapsed()));
        done
    }

    /// Returns a function that records a part of a phase.
    pub(crate) fn inner_phase_recorder(self: &Arc<Self>) -> Box<dyn Fn(&'static str, Duration) + Send> {
        let instance = Arc::clone(self);
        Box::new(move |name, took| instance.inner_phases.lock().push((name, took)))
    }

    /// Returns what runs; `None` before it runs and after it has ended.
    pub fn running(&self) -> Option<Arc<RunningInstance>> {
        self.running.lock().clone()
    }

    /// Records the layers that its sandbox has mounted. They stay as long as the instance does.
    pub(crate) fn uses(&self, layers: [LayerUse; 2]) {
        // A boot after a failed restore uses the same layers.
        drop(self.files.set(layers));
    }

    /// Returns the pieces of its image that were read, if they are recorded.
    pub(crate) fn touched_files(&self) -> Option<Vec<u32>> {
        self.files.get().and_then(|[rootfs, _]| rootfs.touched())
    }

    /// Records the sandbox in which it is being started. A stop in the meantime kills this sandbox.
    ///
    /// # Errors
    /// Returns an error when it has already been asked to stop.
    pub fn starts_in(&self, sandbox: &Arc<Sandbox>) -> Result<(), ApiError> {
        *self.starting_in.lock() = Arc::downgrade(sandbox);
        // Checked after the line above. `stop` does the two in the opposite order.
        if self.is_starting() { Ok(()) } else { Err(gone()) }
    }

    /// Returns whether its start continues, that is, nobody has asked it to stop.
    pub fn is_starting(&self) -> bool {
        matches!(&*self.stage.borrow(), InstanceStage::Starting)
    }

    /// Begins to accept requests with what runs now. Returns it if the instance was asked to stop in the meantime.
    pub(super) fn become_ready(&self, running: Arc<RunningInstance>) -> Result<(), Arc<RunningInstance>> {
        let oom_kills = running.cgroup.oom_kills().unwrap_or(0);
        self.oom_kills_before.store(oom_kills, Ordering::Relaxed);
        self.usage.touch();
        let mut running = Some(running);
        self.stage.send_if_modified(|stage| {
            let starting = matches!(stage, InstanceStage::Starting);
            if starting {
                *self.running.lock() = running.take();
                self.start_took.lock().get_or_insert(self.created.elapsed());
                *stage = InstanceStage::Ready;
            }
            starting
        });
        running.map_or(Ok(()), Err)
    }

    /// Returns the name of the next sandbox: that of the one before may still be in use.
    pub(crate) fn sandbox_name(&self) -> String {
        match self.renewals.load(Ordering::Relaxed) {
            0 => self.id.to_string(),
            renewals => format!("{}-{renewals}", self.id),
        }
    }

    /// Comes in the place of `old`, whose sandbox may still be in use.
    pub(super) fn succeed(&self, old: &Self) {
        self.renewals.store(old.renewals() + 1, Ordering::Relaxed);
    }

    /// Takes out a used copy, and waits for another from then on.
    pub(super) fn take_used(&self) -> Option<Arc<RunningInstance>> {
        let mut taken = None;
        self.stage.send_if_modified(|stage| {
            if matches!(stage, InstanceStage::Ready | InstanceStage::Parked) {
                let mut running = self.running.lock();
                taken = running.take_if(|running| running.is_used());
                if taken.is_some() {
                    // A verdict was on the copy that goes.
                    drop(self.verdict.lock().take());
                    self.renewals.fetch_add(1, Ordering::Relaxed);
                    self.settled.send_replace(false);
                    *stage = InstanceStage::Starting;
                }
            }
            taken.is_some()
        });
        taken
    }

    /// Returns how often it was renewed.
    pub(super) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Ends it because its processes have ended like this, and takes out what ran; the inner `None` if that was
    /// taken before. Returns `None`, and changes nothing, if it has been renewed since, more than `renewals`
    /// times.
    pub(super) fn ended(&self, renewals: u64, end: FunctionState) -> Option<Option<Arc<RunningInstance>>> {
        let running = {
            let mut running = self.running.lock();
            if self.renewals() != renewals {
                return None;
            }
            if running.is_some() {
                self.end.get_or_init(|| end);
            }
            running.take()
        };
        self.usage.close();
        Some(running)
    }

    /// Returns how its first process ended, if it did after it was ready and the platform was not ending it.
    pub(crate) fn ended_as(&self) -> Option<FunctionState> {
        self.end.get().copied().filter(|_| self.verdict().is_none())
    }

    /// Returns how many processes the kernel has killed at the memory limit since it became ready.
    pub(super) fn oom_kills(&self, running: &RunningInstance) -> u64 {
        let before = self.oom_kills_before.load(Ordering::Relaxed);
        running.cgroup.oom_kills().unwrap_or(0).saturating_sub(before)
    }

    /// Returns why the platform is killing it, if it is.
    pub(super) fn verdict(&self) -> Option<ApiError> {
        self.verdict.lock().clone()
    }

    /// Tells those who wait for it why it has ended.
    pub(super) fn tell_end(&self, why: ApiError) {
        self.stage.send_replace(InstanceStage::Ended(Some(why)));
    }

    /// Records that its start failed. Does nothing if it has ended already.
    pub fn failed(&self, error: ApiError) {
        let failed = self.stage.send_if_modified(|stage| {
            let starting = matches!(stage, InstanceStage::Starting);
            if starting {
                *stage = InstanceStage::Ended(Some(error.clone()));
            }
            starting
        });
        if failed {
            self.sink.platform(format!("not started: {}", error.message));
        }
    }

    /// Records that its start has ended, the one after so many renewals. It counts as failed unless it reported
    /// success. Returns whether the instance runs now. Changes nothing if it has been renewed since: another start is
    /// under way.
    pub fn settle(&self, renewals: u64) -> bool {
        let message = "the start of the instance was interrupted; see the worker's log";
        let (mut broke_off, mut runs) = (false, true);
        self.stage.send_if_modified(|stage| {
            if self.renewals() != renewals {
                return false;
            }
            broke_off = matches!(stage, InstanceStage::Starting);
            if broke_off {
                *stage = InstanceStage::Ended(Some(ApiError::new(ErrorCode::Internal, message)));
            }
            runs = !matches!(stage, InstanceStage::Ended(_));
            self.settled.send_replace(true);
            broke_off
        });
        if broke_off {
            self.sink.platform(format!("not started: {message}"));
        }
        runs
    }

    /// Moves from `Ready` to `Capturing` or back. Requests wait in the meantime.
    pub fn set_capturing(&self, capturing: bool) {
        match capturing {
            true => self.step(|s| matches!(s, InstanceStage::Ready), InstanceStage::Capturing),
            false => self.step(|s| matches!(s, InstanceStage::Capturing), InstanceStage::Ready),
        };
    }

    /// Moves from `Ready` to `Moving` or back. Returns whether it was in the former stage.
    pub fn set_moving(&self, moving: bool) -> bool {
        match moving {
            true => self.step(|s| matches!(s, InstanceStage::Ready), InstanceStage::Moving),
            false => self.step(|s| matches!(s, InstanceStage::Moving), InstanceStage::Ready),
        }
    }

    /// Ends the instance here after its migration, and takes out what was stopped. Returns `None` if it ended in
    /// the meantime.
    pub fn leave(&self) -> Option<Arc<RunningInstance>> {
        self.usage.close();
        let left = self.step(|s| matches!(s, InstanceStage::Moving), InstanceStage::Ended(None));
        left.then(|| self.running.lock().take())?
    }

    /// Moves to `next` if `from` accepts the present stage. Returns whether it did.
    pub(super) fn step(&self, from: impl FnOnce(&InstanceStage) -> bool, next: InstanceStage) -> bool {
        self.stage.send_if_modified(|stage| {
            let there = from(stage);
            if there {
                *stage = next;
            }
            there
        })
    }

    pub(super) fn stage(&self) -> watch::Ref<'_, InstanceStage> {
        self.stage.borrow()
    }

    pub(super) fn stages(&self) -> watch::Receiver<InstanceStage> {
        self.stage.subscribe()
    }

    /// Waits until it accepts requests. It may be parked by then.
    ///
    /// # Errors
    /// Returns why it cannot, or `unavailable` if `deadline` passes first.
    pub async fn until_ready(&self, deadline: tokio::time::Instant) -> Result<Arc<RunningInstance>, ApiError> {
        let mut stage = self.stage.subscribe();
        let settled = stage.wait_for(|s| {
            matches!(
                s,
                InstanceStage::Ready | InstanceStage::Parked | InstanceStage::Ended(_)
            )
        });
        match tokio::time::timeout_at(deadline, settled).await {
            Err(_) => Err(ApiError::new(
                ErrorCode::Unavailable,
                "the instance was not ready within the platform's limit for a start; look at `fn logs` and the \
                 worker's log",
            )),
            Ok(Err(_)) => Err(gone()),
            Ok(Ok(stage)) => match &*stage {
                InstanceStage::Ended(why) => Err(why.clone().unwrap_or_else(gone)),
                _ => self.running().ok_or_else(gone),
            },
        }
    }

    /// Retires it if no request is in flight: it then accepts no more. Returns whether it was idle.
    pub fn retire_if_idle(&self) -> bool {
        self.usage.close_if_idle()
    }

    /// Returns its sandbox, also while it starts, unless it is frozen.
    pub(crate) fn running_sandbox(&self) -> Option<Arc<Sandbox>> {
        match self.running() {
            Some(running) => (!running.is_frozen()).then(|| Arc::clone(&running.sandbox)),
            None => self.starting_in.lock().upgrade().filter(|_| self.is_starting()),
        }
    }

    /// Kills it because of `why`, which the callers in flight receive. Does not wait for its end; safe on any thread.
    pub fn kill(&self, why: ApiError) {
        self.verdict.lock().get_or_insert(why);
        if let Some(running) = self.running() {
            running.kill();
        } else if let Some(sandbox) = self.running_sandbox() {
            sandbox.kill();
        }
    }

    /// Records why it is about to be killed by other means.
    pub fn judge(&self, why: ApiError) {
        self.verdict.lock().get_or_insert(why);
    }

    /// Takes the verdict of a failed start, so that it is not blamed on the start that follows.
    pub fn take_verdict(&self) -> Option<ApiError> {
        self.verdict.lock().take()
    }

    /// Ends it, even during its start, and waits until its processes are gone.
    pub async fn stop(&self, why: &str) {
        self.usage.close();
        // This comes before anything is taken: from now on its start cannot make it ready.
        self.stage.send_if_modified(|stage| {
            let running = !matches!(stage, InstanceStage::Ended(_));
            if running {
                *stage = InstanceStage::Ended(None);
            }
            running
        });
        let running = self.running.lock().take();
        if let Some(running) = running {
            self.sink.platform(format!("stopped: {why}"));
            return running.tear_down().await;
        }
        let starting_in = self.starting_in.lock().upgrade();
        if let Some(sandbox) = starting_in {
            sandbox.kill();
        }
        let mut settled = self.settled.subscribe();
        let ended = settled.wait_for(|settled| *settled);
        if tokio::time::timeout(START_END_LIMIT, ended).await.is_err() {
            tracing::warn!(instance = %self.id, "stopped, but its start has not ended yet");
        }
    }

    /// Returns its state, as shown in listings.
    pub fn state(&self) -> InstanceState {
        match &*self.stage.borrow() {
            InstanceStage::Starting => InstanceState::Starting,
            // It finishes its requests in flight and accepts no more.
            InstanceStage::Ready if self.usage.has_overdue() => InstanceState::Stopping,
            InstanceStage::Ready => InstanceState::Ready,
            InstanceStage::Capturing => InstanceState::Capturing,
            InstanceStage::Parked => InstanceState::Parked,
            InstanceStage::Moving => InstanceState::Moving,
            InstanceStage::Ended(_) => InstanceState::Stopping,
        }
    }

    /// Returns its description, as shown in listings.
    pub fn info(&self, worker: &WorkerId) -> InstanceInfo {
        let state = self.state();
        InstanceInfo {
            id: self.id.clone(),
            function: self.spec.function.clone(),
            version: self.spec.version,
            worker: worker.clone(),
            state,
            started: *self.kind.lock(),
            in_flight: self.usage.in_flight(),
            idle_ms: self.usage.idle_ms(),
            memory_bytes: self.running().and_then(|p| p.cgroup.memory_current().ok()).unwrap_or(0),
            evicted_bytes: self.running().and_then(|p| p.cgroup.swap_current().ok()).unwrap_or(0),
            lease_number: self.usage.lease_number(),
        }
    }
}

/// The response to a request for an instance that no longer exists. The gateway places the request again.
pub fn gone() -> ApiError {
    ApiError::new(ErrorCode::InstanceGone, "the instance is gone")
}
