//! The stages of a restore at which CRIU waits for the worker. They run on the thread that drives CRIU.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rekindle_criu::{CriuError, PendingRestore, Stage, StageError};
use rekindle_init::causes::chain;
use rekindle_init::locks::Lock;
use rekindle_pager::{AheadPage, Pager, PendingPreparation, PreparedMemory, Stats};
use rekindle_telemetry::record_past;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Span;

use super::sockets;
use crate::host::cgroup::Cgroup;
use crate::host::sandbox::{Sandbox, SandboxError};

/// How long the pager may take to register the memory and map the working set.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);
/// How long init may take to lay out what CRIU needs.
const LAY_OUT_LIMIT: Duration = Duration::from_secs(60);

/// Determines the pages to fill before the processes run. Called when all mappings are in place, on a thread that may
/// block.
pub(crate) type PagesAhead = Box<dyn FnOnce() -> Arc<[AheadPage]> + Send>;

/// Work before the first instruction of restored processes. Runs on a thread that may block. If it fails, the processes
/// are killed.
pub(crate) type LastWork = Box<dyn FnOnce() -> Result<(), StageError> + Send>;

/// Memory with a pager that is not registered yet.
pub(crate) struct PagedMemory {
    pub(crate) pager: Pager,
    /// The processes whose memory is given to the pager; none if the kernel hands it over.
    pub(crate) given: Vec<i32>,
    pub(crate) ahead: PagesAhead,
}

/// What is done while CRIU waits.
pub(crate) struct StageWork {
    /// Locks that CRIU's restore loses.
    pub(crate) locks: Vec<Lock>,
    /// Bytes of memory that CRIU itself reads, if known.
    pub(crate) eager_bytes: Option<u64>,
    /// The processes' memory. `None` if CRIU reads all of it.
    pub(crate) memory: Option<PagedMemory>,
    pub(crate) last: LastWork,
    /// Records a phase of the restore.
    pub(crate) record: Box<dyn Fn(&'static str, Duration) + Send>,
}

/// A restore that CRIU runs.
pub(super) struct Stages {
    record: Box<dyn Fn(&'static str, Duration) + Send>,
    sandbox: Arc<Sandbox>,
    cgroup: Arc<Cgroup>,
    runtime: Handle,
    span: Span,
    /// Fires when the private files and the descriptors are in place.
    laid_out: Receiver<()>,
    pager: Option<Pager>,
    stats: Option<Arc<Stats>>,
    /// The processes whose memory is given to the pager.
    given: Vec<i32>,
    ahead: Option<PagesAhead>,
    locks: Vec<Lock>,
    eager_bytes: Option<u64>,
    /// Begins when CRIU reports that the processes have all their mappings.
    preparation: Option<Preparation>,
    /// The work before the processes run, and who then gets the pager.
    last: Option<(LastWork, oneshot::Sender<Option<Pager>>)>,
    /// When the processes had everything that CRIU gives them.
    restored_at: Option<Instant>,
    /// When CRIU was told to let them run.
    resumed_at: Option<Instant>,
}

impl Stages {
    /// Prepares the stages. Their spans belong to the current span.
    pub(super) fn new(
        work: StageWork,
        (sandbox, cgroup): (&Arc<Sandbox>, &Arc<Cgroup>),
        laid_out: Receiver<()>,
        resumes: oneshot::Sender<Option<Pager>>,
    ) -> Self {
        let (pager, given, ahead) = match work.memory {
            Some(memory) => (Some(memory.pager), memory.given, Some(memory.ahead)),
            None => Default::default(),
        };
        Self {
            record: work.record,
            sandbox: Arc::clone(sandbox),
            cgroup: Arc::clone(cgroup),
            runtime: Handle::current(),
            span: Span::current(),
            laid_out,
            stats: pager.as_ref().map(|pager| Arc::clone(pager.stats())),
            pager,
            given,
            ahead,
            locks: work.locks,
            eager_bytes: work.eager_bytes,
            preparation: None,
            last: Some((work.last, resumes)),
            restored_at: None,
            resumed_at: None,
        }
    }

    /// Runs CRIU, as [`PendingRestore::run`] does.
    pub(super) fn run(mut self, criu: PendingRestore) -> Result<i32, CriuError> {
        let span = self.span.clone();
        let _in = span.enter();
        let began = Instant::now();
        let restored = criu.run(|stage| match stage {
            Stage::PreRestore => self.await_files(),
            Stage::PostRestore => self.hand_over_memory(),
            Stage::PreResume => {
                // The span covers everything so far: processes created, eager pages read, mappings and descriptors set
                // up, memory handed over.
                let eager = self.eager_bytes.map(|bytes| ("rekindle.eager_bytes", bytes));
                record_past(
                    &self.span,
                    "criu until resume",
                    began,
                    began.elapsed(),
                    eager.as_slice(),
                );
                self.restored_at = Some(Instant::now());
                let ready = self.make_ready();
                self.resumed_at = Some(Instant::now());
                // CRIU lets the processes run even if this fails.
                ready.inspect_err(|_| self.sandbox.kill())
            }
            Stage::Seized | Stage::PostDump | Stage::Other(_) => Ok(()),
        });
        self.record_phases(began);
        if restored.is_err() {
            // Before the pager ends with `self`, since faults pass from then on.
            self.sandbox.kill();
        }
        restored
    }

    /// CRIU has read the images, and opens files next.
    fn await_files(&self) -> Result<(), StageError> {
        Ok(self.laid_out.recv_timeout(LAY_OUT_LIMIT)?)
    }

    /// The processes have all their mappings. Their memory is registered and filled while CRIU goes on.
    fn hand_over_memory(&mut self) -> Result<(), StageError> {
        let given = match self.given.as_slice() {
            [] => Vec::new(),
            pids => self.runtime.block_on(self.sandbox.userfaults(pids))?,
        };
        let locks = std::mem::take(&mut self.locks);
        if !locks.is_empty()
            && let Err(e) = self.runtime.block_on(self.sandbox.take_locks(locks))
        {
            tracing::warn!(error = %chain(&e), "a restored function has lost locks");
        }
        // CRIU opens no more files. Links are followed in parallel with the rest of the preparation.
        let sandbox = Arc::clone(&self.sandbox);
        let linked = self.runtime.spawn(async move { sandbox.follow_links().await });
        let memory = match &self.pager {
            Some(pager) => {
                let ahead = self.ahead.take().ok_or("its memory is handed over already")?;
                let ahead = ahead();
                Some((ahead.len(), pager.prepare(given, ahead)?))
            }
            None => None,
        };
        self.preparation = Some(Preparation { memory, linked });
        Ok(())
    }

    /// The processes are about to run: completes what they need.
    fn make_ready(&mut self) -> Result<(), StageError> {
        // CRIU need not report the stage before.
        if self.preparation.is_none() {
            self.hand_over_memory()?;
        }
        if let Some(preparation) = self.preparation.take() {
            preparation.end(&self.runtime)?;
        }
        sockets::give_to_users(&self.cgroup);
        if let Some((last_work, resumes)) = self.last.take() {
            last_work()?;
            // It does not matter if nobody waits for this.
            let _ = resumes.send(self.pager.take());
        }
        Ok(())
    }

    /// Records the phases of a restore with a pager. Without one, all of it is one phase of a boot.
    fn record_phases(&self, began: Instant) {
        let Some(stats) = &self.stats else { return };
        if let (Some(restored), Some(resumed)) = (self.restored_at, self.resumed_at) {
            (self.record)("working-set", resumed.saturating_duration_since(restored));
            let took = resumed.elapsed();
            record_past(&self.span, "criu resume", resumed, took, &[]);
            (self.record)("resume", took);
        }
        let handshake = stats.marks.lock().handshake;
        if let Some((since, took)) = handshake {
            record_past(&self.span, "handshake", since, took, &[]);
            (self.record)("processes", since.saturating_duration_since(began));
            (self.record)("handshake", took);
            if let Some(restored) = self.restored_at {
                (self.record)("mappings", restored.saturating_duration_since(since + took));
            }
        }
    }
}

/// What goes on while CRIU restores the rest.
struct Preparation {
    /// The number of pages to fill ahead, and the pager's work.
    memory: Option<(usize, PendingPreparation)>,
    /// Task that makes links of the private files followable.
    linked: JoinHandle<Result<(), SandboxError>>,
}

impl Preparation {
    /// Waits until it is done.
    fn end(self, runtime: &Handle) -> Result<(), StageError> {
        if let Some((asked, preparing)) = self.memory {
            let PreparedMemory { filled, took } = preparing.done(PREPARE_LIMIT)?;
            let pages = ("rekindle.pages", asked as u64);
            record_past(&Span::current(), "working set", took.0, took.1, &[pages]);
            let us = took.1.as_micros();
            tracing::debug!(asked, mapped = filled, us, "working set mapped");
        }
        runtime.block_on(self.linked)??;
        Ok(())
    }
}
