//! A sandbox whose CRIU has its order and its images: what a restore begins with.

use std::path::Path;
use std::sync::Arc;

use rekindle_criu::descriptors::{OUTPUT_FDS, OUTPUT_PIPES, OUTPUT_STREAMS, pipe_key};
use rekindle_criu::{InheritFd, PendingRestore, RestoreOrder, ScratchDir, Session};
use rekindle_init::protocol::held_path;
use rekindle_pager::Ancestor;
use rekindle_wire::ApiError;

use super::installation::Criu;
use super::probe;
use crate::errors::restore_failed;
use crate::host::cgroup::Cgroup;
use crate::host::sandbox::{CriuUse, IdleCriu, IsolatedProcess, Output, Sandbox};
use crate::snapshots::PipeNote;

pub(crate) struct RestoreImages<'a> {
    pub(crate) dir: &'a Path,
    /// Name of the directory from which CRIU reads them.
    pub(crate) to: &'a str,
    pub(crate) pids: &'a [i32],
    /// Names of the output pipes in the images.
    pub(crate) pipes: &'a [PipeNote],
}

impl RestoreImages<'_> {
    /// Returns whether the outputs have the names that a prestarted CRIU expects.
    fn are_named(&self) -> bool {
        let named = |note: &PipeNote| {
            let at = OUTPUT_STREAMS.iter().position(|stream| *stream == note.stream);
            at.is_some_and(|at| note.key == pipe_key(OUTPUT_PIPES[at]))
        };
        self.pipes.iter().all(named)
    }

    /// Returns the process whose memory the kernel can hand over: it must be the only one.
    fn alone(&self) -> Option<i32> {
        match self.pids {
            [pid] => Some(*pid),
            _ => None,
        }
    }
}

/// A restore that is ready to run. Fields drop in order: the sandbox (which kills) before the control group (which must
/// be empty to be removed).
pub(crate) struct PreparedRestore {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) outputs: [Output; 2],
    pub(crate) criu: PendingRestore,
    /// CRIU's memory and the process, if the kernel hands over the memory.
    pub(crate) fork_handover: Option<(Ancestor, i32)>,
    /// The directory where CRIU reads images and writes its log.
    pub(crate) scratch: ScratchDir,
    pub(crate) cgroup: Arc<Cgroup>,
}

impl PreparedRestore {
    /// Links the images for the CRIU that waits in a sandbox, and orders it to restore them. Starts another CRIU if the
    /// waiting one is prestarted for other images.
    ///
    /// # Errors
    /// Returns `restore_failed` when they cannot be laid out.
    pub(crate) async fn of(
        criu: &Criu,
        isolated: IsolatedProcess,
        images: RestoreImages<'_>,
    ) -> Result<Self, ApiError> {
        let IsolatedProcess {
            cgroup,
            sandbox,
            outputs,
            criu: waiting,
            ..
        } = isolated;
        criu.pool.maker().criu_used();
        let alone = images.alone();
        let (session, fork_handover) = match waiting {
            Some(IdleCriu {
                session,
                ancestor,
                prestarted: None,
            }) => {
                give_probe(criu, &sandbox).await?;
                (session, ancestor.zip(alone))
            }
            Some(IdleCriu {
                session,
                ancestor: Some(ancestor),
                prestarted: Some(prestarted),
            }) if let Some(pid) = alone
                && images.are_named() =>
            {
                let (pending, scratch) = prestarted
                    .fill(session, images.dir, criu.settings.restore_limit)
                    .map_err(|e| restore_failed("lay out the images", &e))?;
                return Ok(Self {
                    sandbox,
                    outputs,
                    criu: pending,
                    fork_handover: Some((ancestor, pid)),
                    scratch,
                    cgroup,
                });
            }
            // None waits, or for other images. The memory of another CRIU is different.
            other => {
                drop(other);
                let (session, ancestor) = start(criu, &sandbox, &cgroup, &outputs).await?;
                (session, Some(ancestor).zip(alone))
            }
        };
        let scratch = ScratchDir::make(criu.scratch(images.to)).and_then(|scratch| {
            scratch.give_to(sandbox.host_id(0))?;
            scratch.link(images.dir)?;
            Ok(scratch)
        });
        Ok(Self {
            criu: PendingRestore::Ordered(session, order(criu, &outputs, images.pipes)),
            sandbox,
            outputs,
            fork_handover,
            scratch: scratch.map_err(|e| restore_failed("lay out the images", &e))?,
            cgroup,
        })
    }

    /// Orders another CRIU to restore the images in `scratch`, with all their memory: no pager serves it.
    ///
    /// # Errors
    /// Returns an error when CRIU cannot be started.
    pub(crate) async fn without_pager(
        criu: &Criu,
        isolated: IsolatedProcess,
        scratch: ScratchDir,
        pipes: &[PipeNote],
    ) -> Result<Self, ApiError> {
        let IsolatedProcess {
            cgroup,
            sandbox,
            outputs,
            criu: waiting,
            ..
        } = isolated;
        // That CRIU may wait for other images.
        if let Some(waiting) = waiting {
            waiting.let_go();
        }
        scratch
            .give_to(sandbox.host_id(0))
            .map_err(|e| restore_failed("lay out the images", &e))?;
        let (session, _) = start(criu, &sandbox, &cgroup, &outputs).await?;
        Ok(Self {
            criu: PendingRestore::Ordered(session, order(criu, &outputs, pipes)),
            sandbox,
            outputs,
            fork_handover: None,
            scratch,
            cgroup,
        })
    }

    /// Describes how the memory is handed over, for logs. Either the kernel does it, from a CRIU that was prestarted or
    /// not, or each process is given to the pager.
    pub(crate) fn handover(&self) -> &'static str {
        match (&self.fork_handover, self.criu.is_prestarted()) {
            (Some(_), true) => "kernel, prestarted",
            (Some(_), false) => "kernel",
            (None, _) => "given",
        }
    }
}

/// Builds the order to restore images whose outputs have these names.
fn order(criu: &Criu, outputs: &[Output; 2], pipes: &[PipeNote]) -> RestoreOrder {
    let inherit = std::iter::zip(OUTPUT_FDS, outputs).filter_map(|(fd, output)| {
        let note = pipes.iter().find(|note| note.stream == output.stream.as_str())?;
        let key = note.key.clone();
        Some(InheritFd { key, fd })
    });
    RestoreOrder {
        images_dir: held_path(0),
        inherit: inherit.collect(),
        log_level: criu.settings.log_level,
        limit: criu.settings.restore_limit,
    }
}

/// Gives the saved kernel probe to a CRIU that is not prestarted.
async fn give_probe(criu: &Criu, sandbox: &Sandbox) -> Result<(), ApiError> {
    match criu.probe() {
        Some(probe) => probe::give(sandbox, &probe).await,
        None => Ok(()),
    }
}

/// Starts another CRIU, which waits for any order, and returns its memory.
async fn start(
    criu: &Criu,
    sandbox: &Sandbox,
    cgroup: &Cgroup,
    outputs: &[Output; 2],
) -> Result<(Session, Ancestor), ApiError> {
    give_probe(criu, sandbox).await?;
    let (session, theirs) = Session::pair().map_err(|e| restore_failed("start criu", &e))?;
    let fds = [&theirs, &outputs[0].write_end, &outputs[1].write_end];
    let group_procs = cgroup.function_procs().map_err(|e| restore_failed("start criu", &e))?;
    let purpose = CriuUse::Restore {
        group_procs: &group_procs,
    };
    sandbox
        .start_criu(&fds, purpose)
        .await
        .map_err(|e| restore_failed("start criu", &e))?;
    let ancestor = sandbox.ancestor().await;
    // The same call gives it a time namespace for what it restores.
    let ancestor = ancestor.map_err(|e| restore_failed("reach criu's memory", &e))?;
    Ok((session, ancestor))
}
