//! The function at a standstill, for as long as its checkpoint looks at it:
//!
//! ```text
//! running ──freeze──> frozen ──no strays?──> criu seizes every task, then thaws; at its end freezes ──dropped──> running, or stopped
//!                        │└──a stray, or too late: thawed, no checkpoint
//!                        └──some are stopped: thawed; criu seizes the tree; frozen ──no strays?──> compared, saved, thawed
//! ```
//!
//! The freezer holds whatever is in the function's control group, also what is not in the tree that CRIU dumps. So a process that is to be
//! found does not get away, and nothing of the function changes a file between CRIU's look at a path and what is saved of it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rekindle_snapshotter::criu::own_descriptor;
use tokio::runtime::Handle;

use crate::host::cgroup::FreezeError;
use crate::host::sandbox::SandboxError;
use crate::instance::RunningInstance;

/// The descriptor of the function's freezer in a CRIU that dumps, behind its socket and the image directory.
const FREEZER_FD: i32 = 5;
/// How often a function that is about to start a program is left to do so, and for how long.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(4);

/// Why a function cannot be checkpointed as it is.
#[derive(Debug, thiserror::Error)]
pub enum QuiesceError {
    /// It does not stand still.
    #[error("bring the function to a standstill")]
    Freeze(#[source] FreezeError),
    /// It has a process that a checkpoint would miss.
    #[error(transparent)]
    Strays(#[from] SandboxError),
}

/// The function's group is frozen while this exists.
struct Frozen(Arc<RunningInstance>);

impl Frozen {
    /// Freezes it where no process is one that a checkpoint would miss.
    fn without_strays(parts: &Arc<RunningInstance>, runtime: &Handle) -> Result<Self, QuiesceError> {
        parts.cgroup.freeze().map_err(QuiesceError::Freeze)?;
        let frozen = Self(Arc::clone(parts));
        runtime.block_on(parts.sandbox.refuse_strays())?;
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(e) = self.0.cgroup.thaw() {
            tracing::error!(group = self.0.cgroup.name(), error = %e, "a function that was checkpointed stays frozen");
        }
    }
}

/// Of a function that is to be checkpointed now.
pub(crate) struct QuiescedFunction {
    parts: Arc<RunningInstance>,
    /// What CRIU is given. Not where a process is stopped by a signal: the freezer of version 1 does not let CRIU seize it. That function is
    /// frozen once more when CRIU has seized what it found.
    frozen: Option<Frozen>,
}

impl QuiescedFunction {
    /// Brings it about, with no process that a checkpoint would miss. Blocks for a millisecond, up to some seconds where processes do not halt.
    ///
    /// # Errors
    /// See [`QuiesceError`]; the function goes on then.
    pub(crate) fn of(parts: &Arc<RunningInstance>, runtime: &Handle) -> Result<Self, QuiesceError> {
        let mut tries = 0;
        loop {
            // Whom the freezer holds looks like one that sleeps.
            let stopped = some_are_stopped(parts);
            match Frozen::without_strays(parts, runtime) {
                Ok(frozen) => {
                    return Ok(Self {
                        parts: Arc::clone(parts),
                        frozen: (!stopped).then_some(frozen),
                    });
                }
                Err(QuiesceError::Strays(e)) if e.is_passing() && tries < TRIES => {}
                Err(e) => return Err(e),
            }
            tries += 1;
            std::thread::sleep(PAUSE);
        }
    }

    /// Does what is to be done once CRIU has all that it wants, while nothing of the function moves.
    ///
    /// # Errors
    /// What `work` answers, or that there is a process by now that CRIU has not seen.
    pub(crate) fn hold<T, E>(&self, runtime: &Handle, work: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        E: From<QuiesceError>,
    {
        let _frozen = match &self.frozen {
            // CRIU holds whatever there was.
            Some(_) => None,
            None => Some(Frozen::without_strays(&self.parts, runtime)?),
        };
        work()
    }

    /// The freezer, to be CRIU's third descriptor.
    pub(crate) fn freezer(parts: &RunningInstance) -> std::io::Result<OwnedFd> {
        File::open(parts.cgroup.function()).map(OwnedFd::from)
    }

    /// The path by which CRIU finds it, if it is to.
    pub(crate) fn freezer_path(&self) -> Option<String> {
        self.frozen.as_ref().map(|_| own_descriptor(FREEZER_FD))
    }
}

/// Whether a signal has stopped a process inside.
fn some_are_stopped(parts: &RunningInstance) -> bool {
    let pids = parts.cgroup.pids().unwrap_or_default();
    pids.iter().any(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Behind the name, which may hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
