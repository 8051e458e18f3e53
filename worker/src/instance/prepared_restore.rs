//! Laying images out for the CRIU that waits in a sandbox, and ordering it to restore them; or another, where that one is prestarted for other images.

use std::path::Path;

use rekindle_init::protocol::held_path;
use rekindle_pager::Ancestor;
use rekindle_snapshotter::criu::{InheritFd, RestoreOrder, Session};
use rekindle_wire::ApiError;

use crate::host::cgroup::Cgroup;
use crate::host::probe;
use crate::host::sandbox::criu::{Restore, Scratch, WaitingCriu, pipe_key};
use crate::host::sandbox::pool::{OUTPUT_FDS, OUTPUT_PIPES, OUTPUT_STREAMS};
use crate::host::sandbox::{CriuUse, Sandbox};
use crate::instance::isolated_process::Output;
use crate::instance::restore::failed;
use crate::snapshots::PipeNote;
use crate::worker::Worker;

/// What is to be restored.
pub(crate) struct Images<'a> {
    /// Where they are.
    pub(crate) dir: &'a Path,
    /// Names the directory that CRIU is to have them in.
    pub(crate) to: &'a str,
    /// The process, if it is one whose memory the kernel can hand over.
    pub(crate) alone: Option<i32>,
    /// What the outputs are called in them.
    pub(crate) pipes: &'a [PipeNote],
}

/// A restore that can be run.
pub(crate) struct PreparedRestore {
    pub(crate) restore: Restore,
    /// CRIU's memory and the process, if the kernel hands that one's over.
    pub(crate) fork_handover: Option<(Ancestor, i32)>,
    /// Where CRIU reads images and writes its log.
    pub(crate) scratch: Scratch,
}

impl PreparedRestore {
    /// How the memory is handed over, for whoever wants to know: by the kernel, from a CRIU that was prestarted or not,
    /// or given, of each process.
    pub(crate) fn handover(&self) -> &'static str {
        match (&self.fork_handover, self.restore.has_images()) {
            (Some(_), true) => "kernel, prestarted",
            (Some(_), false) => "kernel",
            (None, _) => "given",
        }
    }
}

impl Images<'_> {
    /// Whether the outputs are called what a prestarted CRIU takes them for.
    fn are_named(&self) -> bool {
        let named = |note: &PipeNote| {
            let at = OUTPUT_STREAMS.iter().position(|stream| *stream == note.stream);
            at.is_some_and(|at| note.key == pipe_key(OUTPUT_PIPES[at]))
        };
        self.pipes.iter().all(named)
    }
}

/// Has them laid out, for CRIU to find by the time that the restore is run.
///
/// # Errors
/// `restore_failed` when they cannot be.
pub(crate) async fn begin(
    worker: &Worker,
    sandbox: &Sandbox,
    cgroup: &Cgroup,
    outputs: &[Output; 2],
    criu: WaitingCriu,
    images: Images<'_>,
) -> Result<PreparedRestore, ApiError> {
    let WaitingCriu {
        session,
        ancestor,
        prestarted,
    } = criu;
    let fork_handover = ancestor.zip(images.alone);
    let limit = worker.config.restore_limit;
    let (session, fork_handover) = match prestarted {
        None => {
            give_probe(worker, sandbox).await?;
            (session, fork_handover)
        }
        Some(prestarted) if fork_handover.is_some() && images.are_named() => {
            let filled = prestarted
                .fill(images.dir)
                .map_err(|e| failed("lay out the images", &e))?;
            return Ok(PreparedRestore {
                restore: Restore::Prestarted(session, filled.fifo, filled.inventory, limit),
                fork_handover,
                scratch: filled.scratch,
            });
        }
        // Another has another memory.
        Some(prestarted) => {
            drop((fork_handover, prestarted, session));
            let (session, ancestor) = start(worker, sandbox, cgroup, outputs).await?;
            (session, Some(ancestor).zip(images.alone))
        }
    };
    let dir = worker.config.run_dir.join("restores").join(images.to);
    let scratch = Scratch::make(dir).and_then(|scratch| {
        scratch.give_to(sandbox)?;
        scratch.link(images.dir)?;
        Ok(scratch)
    });
    let pipes = std::iter::zip(OUTPUT_FDS, outputs);
    let inherit = pipes.filter_map(|(fd, output)| {
        let note = images.pipes.iter().find(|n| n.stream == output.stream)?;
        let key = note.key.clone();
        Some(InheritFd { key, fd })
    });
    let order = RestoreOrder {
        images_dir: held_path(0),
        inherit: inherit.collect(),
        log_level: worker.config.criu_log_level,
        limit,
    };
    Ok(PreparedRestore {
        restore: Restore::Ordered(session, order),
        fork_handover,
        scratch: scratch.map_err(|e| failed("lay out the images", &e))?,
    })
}

/// Has a CRIU that is not prestarted find what another has found of the kernel.
async fn give_probe(worker: &Worker, sandbox: &Sandbox) -> Result<(), ApiError> {
    match worker.probe() {
        Some(probe) => probe::give(sandbox, &probe).await,
        None => Ok(()),
    }
}

/// Another CRIU, which waits for any order, and its memory.
pub(crate) async fn start(
    worker: &Worker,
    sandbox: &Sandbox,
    cgroup: &Cgroup,
    outputs: &[Output; 2],
) -> Result<(Session, Ancestor), ApiError> {
    give_probe(worker, sandbox).await?;
    let (session, theirs) = Session::pair().map_err(|e| failed("start criu", &e))?;
    let fds = [&theirs, &outputs[0].write_end, &outputs[1].write_end];
    let group_procs = cgroup.function_procs().map_err(|e| failed("start criu", &e))?;
    let purpose = CriuUse::Restore {
        group_procs: &group_procs,
    };
    sandbox
        .start_criu(&fds, purpose)
        .await
        .map_err(|e| failed("start criu", &e))?;
    let ancestor = sandbox.ancestor().await;
    // It has a time namespace for what it restores by this, too.
    let ancestor = ancestor.map_err(|e| failed("reach criu's memory", &e))?;
    Ok((session, ancestor))
}
