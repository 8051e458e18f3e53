//! Laying images out for the CRIU that waits in a sandbox, and ordering it to restore them; or another, where that one is primed for other images.

use std::path::Path;

use rekindle_init::protocol::{CRIU_DIR, held_path};
use rekindle_pager::Ancestor;
use rekindle_snapshotter::criu::{InheritFd, RestoreOrder, Session};
use rekindle_wire::ApiError;

use crate::cgroup::Cgroup;
use crate::instance::enclosure::Output;
use crate::restore::failed;
use crate::sandbox::criu::{Restore, Scratch, Waiting, pipe_key};
use crate::sandbox::pool::{OUTPUT_FDS, OUTPUT_PIPES, OUTPUT_STREAMS};
use crate::sandbox::{CriuUse, Sandbox};
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
pub(crate) struct Begun {
    pub(crate) restore: Restore,
    /// CRIU's memory and the process, if the kernel hands that one's over; else CRIU does.
    pub(crate) descent: Option<(Ancestor, i32)>,
    /// Where CRIU reads images and writes its log.
    pub(crate) scratch: Scratch,
}

impl Begun {
    /// Who hands the memory over, for whoever wants to know: the kernel, from a CRIU that was primed or not, or CRIU.
    pub(crate) fn handover(&self) -> &'static str {
        match (&self.descent, self.restore.has_images()) {
            (Some(_), true) => "kernel, primed",
            (Some(_), false) => "kernel",
            (None, _) => "criu",
        }
    }
}

impl Images<'_> {
    /// Whether the outputs are called what a primed CRIU takes them for.
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
    criu: Waiting,
    images: Images<'_>,
) -> Result<Begun, ApiError> {
    let Waiting {
        session,
        ancestor,
        primed,
    } = criu;
    let descent = ancestor.zip(images.alone);
    let limit = worker.config.restore_limit;
    let (session, descent) = match primed {
        None => (session, descent),
        Some(primed) if descent.is_some() && images.are_named() => {
            let filled = primed.fill(images.dir).map_err(|e| failed("lay out the images", &e))?;
            return Ok(Begun {
                restore: Restore::Primed(session, filled.fifo, filled.inventory, limit),
                descent,
                scratch: filled.scratch,
            });
        }
        // Another has another memory.
        Some(primed) => {
            drop((descent, primed, session));
            (start(sandbox, cgroup, outputs).await?, None)
        }
    };
    let dir = worker.config.run_dir.join("restores").join(images.to);
    let scratch = Scratch::make(dir).and_then(|scratch| scratch.link(images.dir).map(|()| scratch));
    let pipes = std::iter::zip(OUTPUT_FDS, outputs);
    let inherit = pipes.filter_map(|(fd, output)| {
        let note = images.pipes.iter().find(|n| n.stream == output.stream)?;
        let key = note.key.clone();
        Some(InheritFd { key, fd })
    });
    let order = RestoreOrder {
        images_dir: held_path(0),
        inherit: inherit.collect(),
        lazy_pages: descent.is_none(),
        log_level: worker.config.criu_log_level,
        limit,
    };
    Ok(Begun {
        restore: Restore::Ordered(session, order),
        descent,
        scratch: scratch.map_err(|e| failed("lay out the images", &e))?,
    })
}

/// Another CRIU, which waits for any order.
pub(crate) async fn start(sandbox: &Sandbox, cgroup: &Cgroup, outputs: &[Output; 2]) -> Result<Session, ApiError> {
    let (session, theirs) = Session::pair().map_err(|e| failed("start criu", &e))?;
    let fds = [&theirs, &outputs[0].write_end, &outputs[1].write_end];
    let group_procs = cgroup.function_procs().map_err(|e| failed("start criu", &e))?;
    let purpose = CriuUse::Restore {
        group_procs: &group_procs,
    };
    let started = sandbox.start_criu(Path::new(CRIU_DIR), &fds, purpose).await;
    started.map_err(|e| failed("start criu", &e)).map(|()| session)
}
