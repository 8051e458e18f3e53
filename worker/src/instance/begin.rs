//! Restores that begin ahead, in sandboxes furnished for the snapshots that were restored last: memory is mapped and
//! filled, and most files are open, before anybody asks for a copy. Clocks, threads and timers follow when an instance
//! takes the sandbox.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_pager::{AheadPage, Handover, LostPage, PAGE};
use rekindle_wire::{FunctionId, SnapshotId};

use super::restored_memory::restored_memory;
use crate::criu::memory::OnLost;
use crate::host::sandbox::{BeginError, BeginRestore, BegunRestore, Hollow, Sandbox};
use crate::host::start_limiter::StartLimiter;
use crate::metrics::Metrics;
use crate::restorer::{BegunProgram, ProgramStart};
use crate::snapshots::{OpenSnapshot, RestoreProgram, WorkingSetUse};

/// How long it may take: usually some milliseconds. Others wait for it, and what a function's snapshot holds may take
/// long.
const LIMIT: Duration = Duration::from_millis(500);
/// What takes longer does not begin for a while.
const SLOW: Duration = Duration::from_millis(200);
/// Maximum number of bytes that a restore may hold which nobody may ask for.
const HELD_MAX: u64 = 32 << 20;

/// Begins restores of a snapshot ahead.
pub(super) struct SnapshotBeginning {
    pub(super) function: FunctionId,
    pub(super) snapshot: Arc<OpenSnapshot>,
    pub(super) metrics: Arc<Metrics>,
    /// The starts that it gives way to.
    pub(super) starts: Arc<StartLimiter>,
}

/// A restore that has begun.
pub(super) struct BegunSnapshot {
    pub(super) snapshot: Arc<OpenSnapshot>,
    pub(super) program: BegunProgram,
    pub(super) working_set: WorkingSetUse,
    pub(super) on_lost: LostPageAction,
}

/// What is done when a page is lost. Until an instance takes the sandbox, that ends.
#[derive(Clone)]
pub(super) struct LostPageAction(Arc<Mutex<Lost>>);

enum Lost {
    /// None is. This is done then.
    No(OnLost),
    Yes(LostPage),
}

impl LostPageAction {
    fn end(sandbox: &Arc<Sandbox>, snapshot: &SnapshotId, metrics: &Arc<Metrics>) -> Self {
        let (sandbox, snapshot, metrics) = (Arc::downgrade(sandbox), snapshot.clone(), Arc::clone(metrics));
        Self(Arc::new(Mutex::new(Lost::No(Box::new(move |lost| {
            tracing::error!(%snapshot, error = %lost, "a page is lost; a restore that had begun ends");
            metrics.page_lost();
            if let Some(sandbox) = sandbox.upgrade() {
                sandbox.kill();
            }
        })))))
    }

    /// Has this done instead.
    ///
    /// # Errors
    /// Returns the page that is lost already.
    pub(super) fn replace(&self, by: OnLost) -> Result<(), LostPage> {
        let mut state = self.0.lock();
        match &*state {
            Lost::No(_) => {
                *state = Lost::No(by);
                Ok(())
            }
            Lost::Yes(lost) => Err(lost.clone()),
        }
    }

    fn run(&self, lost: LostPage) {
        let before = std::mem::replace(&mut *self.0.lock(), Lost::Yes(lost.clone()));
        if let Lost::No(action) = before {
            action(lost);
        }
    }
}

impl BeginRestore for SnapshotBeginning {
    fn is_worthwhile(&self) -> Result<bool, BeginError> {
        // Others have the processors then.
        if self.starts.waiting() > 0 {
            return Ok(false);
        }
        let (working_set, ahead) = self.snapshot.begin();
        let program = self.snapshot.program().filter(|program| program.may_begin());
        // Several processes share what they open, so they open it before they have their memory.
        let program = program.filter(|program| program.pids().len() == 1);
        // While it is recorded which pages a copy touches, it is not known which are worth it.
        Ok(match program.filter(|_| !working_set.records) {
            Some(program) => held(program, &self.snapshot.images.archive(), &ahead)? <= HELD_MAX,
            None => false,
        })
    }

    fn over(&self) -> BoxFuture<'static, ()> {
        self.snapshot.forgotten.clone().cancelled_owned().boxed()
    }

    fn begin<'a>(
        &'a self,
        sandbox: &'a Arc<Sandbox>,
        hollow: Hollow,
        outputs: [OwnedFd; 2],
    ) -> BoxFuture<'a, Result<BegunRestore, BeginError>> {
        async move {
            let program = self.snapshot.program().ok_or("its restore program has failed")?;
            let began = Instant::now();
            let run = tokio::time::timeout(LIMIT, self.run(sandbox, program, hollow, outputs));
            let begun = run.await.map_err(BeginError::from).flatten();
            if begun.is_err() || began.elapsed() > SLOW {
                program.failed_to_begin();
            }
            let begun = begun?;
            Ok(Box::new(begun) as BegunRestore)
        }
        .boxed()
    }
}

impl SnapshotBeginning {
    async fn run(
        &self,
        sandbox: &Arc<Sandbox>,
        program: &Arc<RestoreProgram>,
        hollow: Hollow,
        outputs: [OwnedFd; 2],
    ) -> Result<BegunSnapshot, BeginError> {
        let (working_set, ahead) = self.snapshot.begin();
        let on_lost = LostPageAction::end(sandbox, &self.snapshot.id, &self.metrics);
        let told = on_lost.clone();
        let lost: OnLost = Box::new(move |lost| told.run(lost));
        let memory = restored_memory(&self.snapshot, &self.function, working_set, ahead, lost)?;
        let (pager, ahead) = memory.serve(Handover::Given)?;
        self.metrics.pagers.watch(pager.stats());
        let start = ProgramStart {
            outputs,
            snapshot: Some(Arc::clone(&self.snapshot)),
            program: Arc::clone(program),
            pager,
            ahead,
        };
        let archive = OwnedFd::from(File::open(self.snapshot.images.archive())?);
        sandbox.load_files(&archive).await?;
        Ok(BegunSnapshot {
            snapshot: Arc::clone(&self.snapshot),
            program: start.begin(hollow).await?,
            working_set,
            on_lost,
        })
    }
}

/// Returns how many bytes a copy has of its own before it runs, at most: pages that are filled, of which most are the
/// template's, and private files.
fn held(program: &RestoreProgram, archive: &Path, ahead: &[AheadPage]) -> Result<u64, BeginError> {
    /// A file of some bytes takes 2 KiB of the archive. Outside, it has a page and an inode.
    const UNPACKED: u64 = 3;
    let files = fs::metadata(archive)?.len() * UNPACKED;
    Ok(program.bytes() + ahead.len() as u64 * PAGE + files)
}
