//! Restores that begin ahead, in sandboxes furnished for the snapshots that were restored last: memory is mapped and
//! filled, and files are open, before anybody asks for a copy. Clocks, threads and timers follow when an instance takes
//! the sandbox.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_pager::{AheadPage, Handover, LostPage, PAGE};
use rekindle_wire::FunctionId;

use super::restore::restored_memory;
use crate::criu::memory::{OnLost, RestoredMemory};
use crate::host::sandbox::maker::EmptySandbox;
use crate::host::sandbox::{BeginError, BeginRestore, Hollow, Sandbox};
use crate::metrics::Metrics;
use crate::restorer::{BegunProgram, ProgramStart};
use crate::snapshots::{OpenSnapshot, RestoreProgram, WorkingSetUse};

/// How long it may take. Others wait for it, and what a function's snapshot holds may take long.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are copied for a restore that nobody may ask for.
const COPIED_MAX: u64 = 32 << 20;

/// Begins restores of a snapshot ahead.
pub(super) struct SnapshotBeginning {
    pub(super) function: FunctionId,
    pub(super) snapshot: Arc<OpenSnapshot>,
    pub(super) metrics: Arc<Metrics>,
}

/// A restore that has begun.
pub(super) struct BegunSnapshot {
    pub(super) snapshot: Arc<OpenSnapshot>,
    pub(super) program: BegunProgram,
    pub(super) working_set: WorkingSetUse,
    pub(super) on_lost: LostPageAction,
}

/// What is done when a page is lost: the sandbox ends, until an instance that has taken it says what else.
#[derive(Clone)]
pub(super) struct LostPageAction(Arc<Mutex<Option<OnLost>>>);

impl LostPageAction {
    fn end(sandbox: &Arc<Sandbox>) -> Self {
        let sandbox = Arc::downgrade(sandbox);
        let end = move |_: LostPage| {
            if let Some(sandbox) = sandbox.upgrade() {
                sandbox.kill();
            }
        };
        Self(Arc::new(Mutex::new(Some(Box::new(end)))))
    }

    pub(super) fn replace(&self, by: OnLost) {
        *self.0.lock() = Some(by);
    }

    fn run(&self, lost: LostPage) {
        let action = self.0.lock().take();
        if let Some(action) = action {
            action(lost);
        }
    }
}

impl BeginRestore for SnapshotBeginning {
    fn begin<'a>(&'a self, empty: &'a mut EmptySandbox) -> BoxFuture<'a, Result<(), BeginError>> {
        self.begin_in(empty).boxed()
    }
}

impl SnapshotBeginning {
    async fn begin_in(&self, empty: &mut EmptySandbox) -> Result<(), BeginError> {
        let (working_set, ahead) = self.snapshot.begin();
        // Several processes share what they open, so they open it before they have their memory.
        let program = self.snapshot.program().filter(|program| program.pids().len() == 1);
        let Some(program) = program else { return Ok(()) };
        // While it is recorded which pages a copy touches, it is not known which are worth it.
        if working_set.records || copied(program, &self.snapshot.images.archive(), &ahead)? > COPIED_MAX {
            return Ok(());
        }
        let Some(hollow) = empty.hollow.take() else {
            return Ok(());
        };
        let on_lost = LostPageAction::end(&empty.sandbox);
        let told = on_lost.clone();
        let lost: OnLost = Box::new(move |lost| told.run(lost));
        let memory = restored_memory(&self.snapshot, &self.function, working_set, ahead, lost)?;
        let [(_, stdout), (_, stderr)] = &empty.outputs;
        let outputs = [stdout.try_clone()?, stderr.try_clone()?];
        let run = self.run(&empty.sandbox, outputs, Arc::clone(program), hollow, memory);
        let run = tokio::time::timeout(LIMIT, run).await.map_err(BeginError::from);
        // It is not tried over and over.
        let begun = run.flatten().inspect_err(|_| program.failed())?;
        empty.begun = Some(Box::new(BegunSnapshot {
            snapshot: Arc::clone(&self.snapshot),
            program: begun,
            working_set,
            on_lost,
        }));
        Ok(())
    }

    async fn run(
        &self,
        sandbox: &Sandbox,
        outputs: [OwnedFd; 2],
        program: Arc<RestoreProgram>,
        hollow: Hollow,
        memory: RestoredMemory,
    ) -> Result<BegunProgram, BeginError> {
        let (pager, ahead) = memory.serve(Handover::Given)?;
        self.metrics.pagers.watch(pager.stats());
        let start = ProgramStart {
            outputs,
            snapshot: Some(Arc::clone(&self.snapshot)),
            program,
            pager,
            ahead,
        };
        let archive = OwnedFd::from(File::open(self.snapshot.images.archive())?);
        sandbox.load_files(&archive).await?;
        Ok(start.begin(hollow).await?)
    }
}

/// Returns how many bytes a copy has of its own before it runs: pages that are copied, and private files.
fn copied(program: &RestoreProgram, archive: &Path, ahead: &[AheadPage]) -> Result<u64, BeginError> {
    let pages = ahead.iter().filter(|page| page.written).count() as u64;
    Ok(program.bytes() + pages * PAGE + fs::metadata(archive)?.len())
}
