//! What an instance consists of while it runs.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rekindle_pager::Pager;
use rekindle_snapshotter::capture::BaseMemory;
use rekindle_wire::function_config::FunctionConfig;
use tokio::task::JoinHandle;

use super::client::FunctionClient;
use super::reset_point::ResetPoint;
use super::thaw_order::ThawedChildren;
use crate::criu::restore::RestoredProcesses;
use crate::host::cgroup::Cgroup;
use crate::host::sandbox::{Output, Sandbox};
use crate::snapshots::{FileNumbers, OpenSnapshot, PipeNote, WorkingSetUse};

/// What an instance consists of while it runs. Fields drop in order: the sandbox (which kills), then the pager (whose
/// end would let faults pass), then the control group (which must be empty).
pub struct RunningInstance {
    /// Connections to the function.
    pub client: FunctionClient,
    /// The sandbox.
    pub sandbox: Arc<Sandbox>,
    /// The pager that serves its page faults, if it was restored.
    pub pager: Option<Pager>,
    /// The control group with its limits.
    pub cgroup: Arc<Cgroup>,
    /// Names of its output pipes, for a checkpoint.
    pub pipes: Vec<PipeNote>,
    /// Whether the memory that a migration brings in addition to the snapshot is all here; `None` without a migration.
    has_arrived: Option<Arc<AtomicBool>>,
    /// The snapshot that it was restored from, kept open.
    pub snapshot: Option<Arc<OpenSnapshot>>,
    /// The numbers of files that were written when it was restored.
    pub file_numbers: FileNumbers,
    /// The memory it started from, if it started from its runtime's snapshot.
    pub base: OnceLock<BaseMemory>,
    /// How much of the working set was known at the restore.
    pub working_set: Option<WorkingSetUse>,
    /// Whether it is frozen or about to be.
    pub frozen: AtomicBool,
    /// Whether it may have served a request.
    used: AtomicBool,
    was_put_back: AtomicBool,
    /// After how many renewals of its instance it was ready, the last time.
    pub(super) ready_after: Arc<AtomicU64>,
    /// Where it is put back to after a request, if it can be.
    pub(super) reset: Mutex<Option<ResetPoint>>,
    /// While it is parked: those of its processes that go on before their parents.
    pub(super) children: Mutex<Option<ThawedChildren>>,
    /// Ends when all of them go on after a thaw.
    pub(super) thawing: Mutex<Option<JoinHandle<()>>>,
}

/// Where the memory of an instance came from. Nothing is known of one that was booted.
#[derive(Default)]
pub struct MemoryOrigin {
    /// The snapshot that it is mapped from.
    pub snapshot: Option<Arc<OpenSnapshot>>,
    /// How much of the working set was known.
    pub working_set: Option<WorkingSetUse>,
    /// Whether all that a migration brings in addition is here; `None` without a migration.
    pub has_arrived: Option<Arc<AtomicBool>>,
    /// The numbers of files that were written.
    pub file_numbers: FileNumbers,
}

impl RunningInstance {
    /// Puts a running instance together, whose function is as this config says.
    ///
    /// # Errors
    /// Returns an error when the outputs cannot be inspected.
    pub fn new(
        sandbox: Arc<Sandbox>,
        cgroup: Arc<Cgroup>,
        outputs: &[Output; 2],
        pager: Option<Pager>,
        origin: MemoryOrigin,
        config: &FunctionConfig,
    ) -> io::Result<Arc<Self>> {
        let pipes = outputs.iter().map(PipeNote::of).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            client: FunctionClient::new(&sandbox, config),
            sandbox,
            pager,
            cgroup,
            pipes,
            used: AtomicBool::new(origin.has_arrived.is_some()),
            has_arrived: origin.has_arrived,
            snapshot: origin.snapshot,
            file_numbers: origin.file_numbers,
            base: OnceLock::new(),
            working_set: origin.working_set,
            frozen: AtomicBool::new(false),
            was_put_back: AtomicBool::new(false),
            ready_after: Arc::default(),
            reset: Mutex::default(),
            children: Mutex::default(),
            thawing: Mutex::default(),
        }))
    }

    /// Puts a running instance together whose processes were restored, and whose function is as this config says.
    ///
    /// # Errors
    /// The same as [`Self::new`].
    pub(crate) fn restored(
        processes: RestoredProcesses,
        origin: MemoryOrigin,
        config: &FunctionConfig,
    ) -> io::Result<Arc<Self>> {
        let RestoredProcesses {
            sandbox,
            outputs,
            pager,
            cgroup,
        } = processes;
        Self::new(sandbox, cgroup, &outputs, pager, origin, config)
    }

    /// Returns whether memory of it is still on its way here from another host.
    pub fn is_arriving(&self) -> bool {
        let has_arrived = self.has_arrived.as_ref();
        has_arrived.is_some_and(|has_arrived| !has_arrived.load(Ordering::Acquire))
    }

    /// Marks it as used by a request. Returns whether it was not used before.
    pub(super) fn use_once(&self) -> bool {
        !self.used.swap(true, Ordering::SeqCst)
    }

    /// Returns whether it may have served a request.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::SeqCst)
    }

    /// Marks it as put back: as if no request had used it.
    pub(super) fn is_put_back(&self) {
        self.was_put_back.store(true, Ordering::Relaxed);
        self.used.store(false, Ordering::SeqCst);
    }

    /// Returns whether it was put back after a request: the next one touches what is there.
    pub(super) fn was_put_back(&self) -> bool {
        self.was_put_back.load(Ordering::Relaxed)
    }

    // Sequentially consistent, like the count of requests: see `parking`.
    pub(super) fn mark_frozen(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }

    pub(super) fn mark_thawed(&self) {
        self.frozen.store(false, Ordering::SeqCst);
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// Thaws it, to serve or to die: a frozen process cannot even die.
    pub(super) fn thaw(&self) {
        if !self.is_frozen() {
            return;
        }
        match self.cgroup.thaw().and_then(|()| self.cgroup.release()) {
            Ok(()) => self.mark_thawed(),
            Err(e) => tracing::error!(group = self.cgroup.name(), error = %e, "a parked instance cannot be thawed"),
        }
    }

    /// Kills everything inside, without waiting for the end.
    pub fn kill(&self) {
        self.sandbox.kill();
        self.thaw();
    }

    /// Kills the processes inside, waits for their end, then releases the rest: a control group can be removed only
    /// when empty.
    pub(crate) async fn tear_down(self: Arc<Self>) {
        let ended = tokio::task::spawn_blocking(move || {
            self.kill();
            self.sandbox.end();
            drop(self);
        });
        // The task does not panic, so the only possible failure is the shutdown of the runtime.
        let _ = ended.await;
    }
}

impl Drop for RunningInstance {
    fn drop(&mut self) {
        if self.is_frozen() {
            self.kill();
        }
    }
}
