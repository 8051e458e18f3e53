//! Restores that begin ahead, in sandboxes furnished for snapshots that were restored last: their memory is mapped and
//! filled before anybody asks for it. Files, descriptors, threads and clocks follow when an instance takes the sandbox.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_pager::{Handover, LostPage};
use rekindle_wire::FunctionId;

use super::restore::restored_memory;
use crate::criu::memory::OnLost;
use crate::host::sandbox::maker::EmptySandbox;
use crate::host::sandbox::{BeginError, BeginRestore};
use crate::metrics::Metrics;
use crate::restorer::{BegunProgram, ProgramStart};
use crate::snapshots::{OpenSnapshot, WorkingSetUse};

/// Begins restores of a snapshot ahead.
pub(super) struct SnapshotBeginning {
    pub(super) function: FunctionId,
    pub(super) snapshot: Arc<OpenSnapshot>,
    pub(super) metrics: Arc<Metrics>,
}

/// A restore that has begun: a process that has its memory.
pub(super) struct BegunSnapshot {
    pub(super) snapshot: Arc<OpenSnapshot>,
    pub(super) program: BegunProgram,
    pub(super) working_set: WorkingSetUse,
    /// What is done when a page is lost.
    pub(super) on_lost: Arc<Mutex<Option<OnLost>>>,
}

impl BeginRestore for SnapshotBeginning {
    fn begin<'a>(&'a self, empty: &'a mut EmptySandbox) -> BoxFuture<'a, Result<(), BeginError>> {
        self.begin_in(empty).boxed()
    }
}

impl SnapshotBeginning {
    async fn begin_in(&self, empty: &mut EmptySandbox) -> Result<(), BeginError> {
        let (working_set, ahead) = self.snapshot.begin();
        // Several processes share what they open, so they open it before they have their memory. What is recorded says
        // which pages are worth it: until then, none are.
        let program = self.snapshot.program().filter(|program| program.pids().len() == 1);
        let Some(program) = program.filter(|_| !working_set.records) else {
            return Ok(());
        };
        let Some(hollow) = empty.hollow.take() else {
            return Ok(());
        };
        let sandbox = Arc::downgrade(&empty.sandbox);
        let end: OnLost = Box::new(move |_: LostPage| {
            if let Some(sandbox) = sandbox.upgrade() {
                sandbox.kill();
            }
        });
        let on_lost = Arc::new(Mutex::new(Some(end)));
        let told = Arc::clone(&on_lost);
        let lost: OnLost = Box::new(move |page| {
            let on_lost = told.lock().take();
            if let Some(on_lost) = on_lost {
                on_lost(page);
            }
        });
        let memory = restored_memory(&self.snapshot, &self.function, working_set, ahead, lost)?;
        let (pager, ahead) = memory.serve(Handover::Given)?;
        self.metrics.pagers.watch(pager.stats());
        let [(_, stdout), (_, stderr)] = &empty.outputs;
        let start = ProgramStart {
            outputs: [stdout.try_clone()?, stderr.try_clone()?],
            snapshot: Some(Arc::clone(&self.snapshot)),
            program: Arc::clone(program),
            pager,
            ahead,
        };
        let archive = OwnedFd::from(File::open(self.snapshot.images.archive())?);
        empty.sandbox.load_files(&archive).await?;
        let program = start.begin(hollow).await?;
        empty.begun = Some(Box::new(BegunSnapshot {
            snapshot: Arc::clone(&self.snapshot),
            program,
            working_set,
            on_lost,
        }));
        Ok(())
    }
}
