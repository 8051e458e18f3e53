//! Restores processes by a restore program: those of a snapshot, and those of an instance that arrives.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_init::protocol::Clocks;
use rekindle_pager::{Handover, Pager};
use rekindle_wire::ApiError;

use crate::criu::memory::RestoredMemory;
use crate::criu::restore::RestoredProcesses;
use crate::errors::restore_failed;
use crate::host::sandbox::{Hollow, IsolatedProcess};
use crate::metrics::Metrics;
use crate::restorer::{BegunProgram, LastWork, ProgramRun, ProgramStart, RunError};
use crate::snapshots::{OpenSnapshot, RestoreProgram};

pub(crate) struct ProgramRestore {
    pub(crate) program: Arc<RestoreProgram>,
    /// The snapshot whose templates the program maps.
    pub(crate) snapshot: Option<Arc<OpenSnapshot>>,
    /// The archive of the private files.
    pub(crate) archive: PathBuf,
    pub(crate) clocks: Clocks,
    pub(crate) pages: RestoredMemory,
    pub(crate) last: LastWork,
    /// Records a phase of the restore.
    pub(crate) record: Box<dyn Fn(&'static str, Duration) + Send>,
}

impl ProgramRestore {
    /// Runs it in the hollow process of this sandbox, until the processes run.
    ///
    /// # Errors
    /// Returns an error when something fails before they run. The sandbox is gone then.
    pub(crate) async fn run(
        self,
        hollow: Hollow,
        isolated: IsolatedProcess,
        metrics: &Metrics,
    ) -> Result<RestoredProcesses, ApiError> {
        let (pager, ahead) = self.pages.serve(Handover::Given)?;
        metrics.pagers.watch(pager.stats());
        let ends = isolated.outputs.each_ref();
        let ends = ends.map(|output| output.write_end.try_clone());
        let [stdout, stderr] = ends.map(|end| end.map_err(|e| restore_failed("copy an output", &e)));
        let start = ProgramStart {
            outputs: [stdout?, stderr?],
            snapshot: self.snapshot,
            program: self.program,
            pager,
            ahead,
        };
        let run = ProgramRun {
            sandbox: Arc::clone(&isolated.sandbox),
            clocks: self.clocks,
            last: self.last,
            record: self.record,
        };
        restored(run.run(start, hollow, self.archive).await, isolated)
    }
}

/// Goes on with a program that has begun in this sandbox, until the processes run.
///
/// # Errors
/// Returns an error when something fails before they run. The sandbox is gone then.
pub(super) async fn go_on(
    run: ProgramRun,
    begun: BegunProgram,
    isolated: IsolatedProcess,
) -> Result<RestoredProcesses, ApiError> {
    restored(run.go_on(begun).await, isolated)
}

/// Returns what a program has restored in this sandbox.
fn restored(ran: Result<Pager, RunError>, isolated: IsolatedProcess) -> Result<RestoredProcesses, ApiError> {
    let IsolatedProcess {
        sandbox,
        outputs,
        criu,
        cgroup,
        ..
    } = isolated;
    if let Some(criu) = criu {
        criu.let_go();
    }
    let pager = ran.map_err(|e| {
        // Before the control group, which must be empty by then.
        sandbox.kill();
        restore_failed("run the restore program", &e)
    })?;
    Ok(RestoredProcesses {
        sandbox,
        outputs,
        pager: Some(pager),
        cgroup,
    })
}
