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
use rekindle_pager::Pager;
use rekindle_wire::{ApiError, ErrorCode};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::installation::{Criu, CriuSettings};
use super::prepared_restore::PreparedRestore;
use super::stages::{StageWork, Stages};
use crate::errors::restore_failed;
use crate::host::cgroup::Cgroup;
use crate::host::sandbox::{Output, Sandbox};
use crate::snapshots::{FILES_ARCHIVE, OpenSnapshot, adopts_orphans};

/// The log level from which CRIU's logs are kept.
const KEPT_LOG_LEVEL: i32 = 2;

/// Processes to be restored. Their images are in a [`PreparedRestore`].
pub(crate) struct Restore {
    pub(crate) clocks: Clocks,
    pub(crate) work: StageWork,
    /// The snapshot that their memory is mapped from.
    pub(crate) snapshot: Option<Arc<OpenSnapshot>>,
}

/// Processes that run, or are about to. Fields drop in order: the sandbox (which kills), then the pager (whose end
/// would let faults pass), then the control group (which must be empty).
pub(crate) struct RestoredProcesses {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) outputs: [Output; 2],
    /// The pager that serves their page faults, if there is one.
    pub(crate) pager: Option<Pager>,
    pub(crate) cgroup: Arc<Cgroup>,
}

impl Restore {
    /// Runs CRIU until the processes are about to run, a little before CRIU itself reports. CRIU then has to end. Its
    /// log is kept by `name`, if it is.
    ///
    /// # Errors
    /// Returns `restore_failed` when they cannot be restored; then nothing of them runs.
    pub(crate) async fn run(
        self,
        criu: &Criu,
        name: &str,
        prepared: PreparedRestore,
    ) -> Result<(RestoredProcesses, EndingCriu), ApiError> {
        let PreparedRestore {
            cgroup,
            sandbox,
            outputs,
            criu: pending,
            scratch,
            ..
        } = prepared;
        let Self { clocks, work, snapshot } = self;
        let dir = scratch.path().to_owned();
        let laying_out = lay_out(&sandbox, snapshot.as_deref(), &dir, clocks);
        let (laid_out, is_laid_out) = sync_channel(1);
        let (resumes, resumed) = oneshot::channel();
        let stages = Stages::new(work, (&sandbox, &cgroup), is_laid_out, resumes);
        // What a prestarted CRIU reads first is already in place. The rest must be in place only when CRIU begins to
        // restore from it.
        let ending = if pending.is_prestarted() {
            let ending = EndingCriu::start(criu, name, scratch, move || stages.run(pending));
            if let Err(e) = laying_out.await {
                // CRIU's thread sees that the sender is gone.
                drop(laid_out);
                drop(ending.end().await);
                return Err(e);
            }
            ending
        } else {
            laying_out.await?;
            EndingCriu::start(criu, name, scratch, move || stages.run(pending))
        };
        let _ = laid_out.send(());
        let Ok(pager) = resumed.await else {
            ending.end().await?;
            return Err(ApiError::new(
                ErrorCode::Internal,
                "criu did not say when the processes run",
            ));
        };
        let restored = RestoredProcesses {
            sandbox,
            outputs,
            pager,
            cgroup,
        };
        Ok((restored, ending))
    }

    /// Like [`Self::run`], until CRIU has ended.
    ///
    /// # Errors
    /// The same as [`Self::run`].
    pub(crate) async fn run_to_end(
        self,
        criu: &Criu,
        name: &str,
        prepared: PreparedRestore,
    ) -> Result<RestoredProcesses, ApiError> {
        let (restored, ending) = Box::pin(self.run(criu, name, prepared)).await?;
        ending.end().await?;
        Ok(restored)
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
    let archive = File::open(dir.join(FILES_ARCHIVE)).map_err(|e| restore_failed("find the files of /tmp", &e))?;
    let archive = OwnedFd::from(archive);
    let images = OwnedFd::from(File::open(dir).map_err(|e| restore_failed("open the images", &e))?);
    // `use_templates` relies on this order: the images first, then the templates.
    let templates = snapshot.into_iter().flat_map(|snapshot| snapshot.template.files());
    let held: Vec<_> = std::iter::once(&images).chain(templates).collect();
    let adopts = adopts_orphans(dir).map_err(|e| restore_failed("read the images", &e))?;
    let files = async {
        let loaded = sandbox.load_files(&archive).await;
        loaded.map_err(|e| restore_failed("restore /tmp", &e))
    };
    let descriptors = async {
        let held = sandbox.hold(&held, Some(clocks), adopts).await;
        held.map_err(|e| restore_failed("give criu the images", &e))
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
        criu: &Criu,
        name: &str,
        scratch: ScratchDir,
        run: impl FnOnce() -> Result<i32, CriuError> + Send + 'static,
    ) -> Self {
        let CriuSettings {
            log_level, kept_logs, ..
        } = &criu.settings;
        Self {
            task: tokio::task::spawn_blocking(run),
            scratch,
            kept_log: (*log_level >= KEPT_LOG_LEVEL).then(|| kept_logs.join(format!("{name}-{RESTORE_LOG}"))),
        }
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// Returns `restore_failed`, with the cause from CRIU's log, if it has failed.
    pub(crate) async fn end(self) -> Result<(), ApiError> {
        let restored = self.task.await.map_err(|e| restore_failed("restore", &e))?;
        let log = self.scratch.path().join(RESTORE_LOG);
        if let Some(kept) = &self.kept_log {
            keep_log(&log, kept);
        }
        let message = match restored {
            Ok(FUNCTION_PID) => return Ok(()),
            Ok(other) => format!("criu restored process {other} instead of {FUNCTION_PID}"),
            Err(e) => format!("{}{}", restore_failed("restore", &e).message, cause_of(&e, &log)),
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
