//! Restores processes with CRIU. Starts from a snapshot of a function or of a runtime, and migrations, take this one
//! path:
//!
//! ```text
//! images linked, pager started ──> run criu ─┬─ private files, clocks, descriptors are laid out
//!                                            │  criu reads the images ──pre-restore: all is laid out?
//!                                            │  ──post-restore: memory, locks, links
//!                                            │  ──pre-resume: memory is there, last work
//!                                            └─> the processes run ──> criu ends
//! ```
//!
//! The stages in the middle are in `stages.rs`. They run on a thread of their own.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use rekindle_criu::{CriuError, RESTORE_LOG, ScratchDir, cause_of, read_log};
use rekindle_init::protocol::{Clocks, FUNCTION_PID};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::prepared_restore::PreparedRestore;
use super::stages::{StageWork, Stages};
use crate::host::sandbox::Sandbox;
use crate::instance::isolated_process::unavailable;
use crate::instance::{Instance, MemoryOrigin, RunningInstance};
use crate::snapshots::{FILES_ARCHIVE, OpenSnapshot};
use crate::worker::Worker;

/// The log level from which CRIU's logs are kept.
const KEPT_LOG_LEVEL: i32 = 2;

pub(crate) fn failed(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::RestoreFailed, unavailable(what, error).message)
}

/// Processes to be restored. Their images are in a [`PreparedRestore`].
pub(crate) struct Restore {
    pub(crate) clocks: Clocks,
    pub(crate) work: StageWork,
    pub(crate) origin: MemoryOrigin,
}

impl Restore {
    /// Runs CRIU until the processes are about to run, a little before CRIU itself reports. CRIU then has to end.
    ///
    /// # Errors
    /// Returns `restore_failed` when they cannot be restored; then nothing of them runs.
    pub(crate) async fn run(
        self,
        worker: &Worker,
        instance: &Instance,
        prepared: PreparedRestore,
    ) -> Result<(Arc<RunningInstance>, EndingCriu), ApiError> {
        let PreparedRestore {
            cgroup,
            sandbox,
            outputs,
            criu,
            scratch,
            ..
        } = prepared;
        let Self { clocks, work, origin } = self;
        let dir = scratch.path().to_owned();
        let laying_out = lay_out(&sandbox, origin.snapshot.as_deref(), &dir, clocks);
        let (laid_out, is_laid_out) = sync_channel(1);
        let (resumes, resumed) = oneshot::channel();
        let stages = Stages::new(work, &sandbox, is_laid_out, resumes);
        // What a prestarted CRIU reads first is already in place. The rest must be in place only when CRIU begins to
        // restore from it.
        let criu = if criu.is_prestarted() {
            let criu = EndingCriu::start(worker, instance, scratch, move || stages.run(criu));
            if let Err(e) = laying_out.await {
                // CRIU's thread sees that the sender is gone.
                drop(laid_out);
                drop(criu.end().await);
                return Err(e);
            }
            criu
        } else {
            laying_out.await?;
            EndingCriu::start(worker, instance, scratch, move || stages.run(criu))
        };
        let _ = laid_out.send(());
        let Ok(pager) = resumed.await else {
            criu.end().await?;
            return Err(ApiError::new(
                ErrorCode::Internal,
                "criu did not say when the processes run",
            ));
        };
        let running = RunningInstance::new(sandbox, cgroup, &outputs, pager, origin, instance.spec.manifest.port);
        Ok((running.map_err(|e| failed("look at the outputs", &e))?, criu))
    }

    /// Like [`Self::run`], until CRIU has ended.
    ///
    /// # Errors
    /// The same as [`Self::run`].
    pub(crate) async fn run_to_end(
        self,
        worker: &Worker,
        instance: &Instance,
        prepared: PreparedRestore,
    ) -> Result<Arc<RunningInstance>, ApiError> {
        let (running, criu) = Box::pin(self.run(worker, instance, prepared)).await?;
        criu.end().await?;
        Ok(running)
    }
}

/// Puts the private files in place, and gives init the clocks and the files that CRIU opens.
async fn lay_out(
    sandbox: &Sandbox,
    snapshot: Option<&OpenSnapshot>,
    dir: &Path,
    clocks: Clocks,
) -> Result<(), ApiError> {
    // Every snapshot has an archive, though it may be empty.
    let archive = File::open(dir.join(FILES_ARCHIVE)).map_err(|e| failed("find the files of /tmp", &e))?;
    let archive = OwnedFd::from(archive);
    let images = OwnedFd::from(File::open(dir).map_err(|e| failed("open the images", &e))?);
    // `use_templates` relies on this order: the images first, then the templates.
    let templates = snapshot.into_iter().flat_map(|snapshot| snapshot.template.files());
    let held: Vec<_> = std::iter::once(&images).chain(templates).collect();
    let files = async {
        let loaded = sandbox.load_files(&archive).await;
        loaded.map_err(|e| failed("restore /tmp", &e))
    };
    let descriptors = async {
        let held = sandbox.hold(&held, Some(clocks)).await;
        held.map_err(|e| failed("give criu the images", &e))
    };
    futures::try_join!(files, descriptors).map(drop)
}

/// A CRIU that has yet to end. Its processes run, or are about to.
pub(crate) struct EndingCriu {
    task: JoinHandle<Result<i32, CriuError>>,
    scratch: ScratchDir,
    /// Where its log is kept, if it is.
    kept_log: Option<PathBuf>,
}

impl EndingCriu {
    fn start(
        worker: &Worker,
        instance: &Instance,
        scratch: ScratchDir,
        run: impl FnOnce() -> Result<i32, CriuError> + Send + 'static,
    ) -> Self {
        let kept = || {
            worker
                .config
                .data_dir
                .join("criu-logs")
                .join(format!("{}-{RESTORE_LOG}", instance.id))
        };
        Self {
            task: tokio::task::spawn_blocking(run),
            scratch,
            kept_log: (worker.config.criu_log_level >= KEPT_LOG_LEVEL).then(kept),
        }
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Returns `restore_failed`, with the cause from CRIU's log, if it has failed.
    pub(crate) async fn end(self) -> Result<(), ApiError> {
        let restored = self.task.await.map_err(|e| failed("restore", &e))?;
        let log = self.scratch.path().join(RESTORE_LOG);
        if let Some(kept) = &self.kept_log {
            keep_log(&log, kept);
        }
        let message = match restored {
            Ok(FUNCTION_PID) => return Ok(()),
            Ok(other) => format!("criu restored process {other} instead of {FUNCTION_PID}"),
            Err(e) => format!("{}{}", failed("restore", &e).message, cause_of(&e, &log)),
        };
        Err(ApiError::new(ErrorCode::RestoreFailed, message))
    }
}

/// Keeps CRIU's log, best effort, for those who want to see where the time of a restore goes.
fn keep_log(log: &Path, kept: &Path) {
    let copied = kept
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| read_log(log))
        .and_then(|log| std::fs::write(kept, log));
    if let Err(e) = copied {
        tracing::warn!(error = %e, "criu's log is not kept");
    }
}
