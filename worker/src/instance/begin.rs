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

use super::restored_memory::restored_memory;
use crate::criu::memory::OnLost;
use crate::host::sandbox::{BeginError, BeginRestore, BegunRestore, Hollow, Sandbox};
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
    fn is_worthwhile(&self) -> Result<bool, BeginError> {
        let (working_set, ahead) = self.snapshot.begin();
        // Several processes share what they open, so they open it before they have their memory.
        let program = self.snapshot.program().filter(|program| program.pids().len() == 1);
        // While it is recorded which pages a copy touches, it is not known which are worth it.
        Ok(match program.filter(|_| !working_set.records) {
            Some(program) => copied(program, &self.snapshot.images.archive(), &ahead)? <= COPIED_MAX,
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
            let run = tokio::time::timeout(LIMIT, self.run(sandbox, program, hollow, outputs));
            // It is not tried over and over.
            let begun = run.await.map_err(BeginError::from).flatten();
            let begun = begun.inspect_err(|_| program.failed())?;
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
        let on_lost = LostPageAction::end(sandbox);
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

/// Returns how many bytes a copy has of its own before it runs: pages that are copied, and private files.
fn copied(program: &RestoreProgram, archive: &Path, ahead: &[AheadPage]) -> Result<u64, BeginError> {
    let pages = ahead.iter().filter(|page| page.written).count() as u64;
    Ok(program.bytes() + pages * PAGE + fs::metadata(archive)?.len())
}
