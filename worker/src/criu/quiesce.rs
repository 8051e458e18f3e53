//! Stops the function for as long as its checkpoint looks at it:
//!
//! ```text
//! running ──freeze──> frozen ──no strays?──> criu seizes every task, then thaws; at its end freezes
//!                        ││                     ──dropped──> running, or stopped
//!                        │└──a stray, or too late: thawed, no checkpoint
//!                        └──some are stopped: thawed; criu seizes the tree; then
//!                              frozen ──no strays?──> thawed; criu dumps; then
//!                              frozen ──no strays?──> compared, saved, thawed
//! ```
//!
//! The freezer holds everything in the function's control group, including processes outside the tree that CRIU dumps.
//! So a stray process cannot get away. Nor can the function change a file between CRIU's look at a path and the saving
//! of that file.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rekindle_criu::descriptors::{FREEZER_FD, own_descriptor};
use tokio::runtime::Handle;

use crate::host::cgroup::{Cgroup, FreezeError};
use crate::host::sandbox::{Sandbox, SandboxError};

/// Number of attempts, and the pause between them, for a function that is about to start a program.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(4);
/// Number of attempts to stop a function that nobody waits for: a thread that reads from a busy disk stops late.
const FREEZES: u32 = 5;

/// Why a function cannot be checkpointed in its present state.
#[derive(Debug, thiserror::Error)]
pub enum QuiesceError {
    /// It cannot be frozen.
    #[error("bring the function to a standstill")]
    Freeze(#[source] FreezeError),
    /// It has a process that a checkpoint would miss.
    #[error(transparent)]
    Strays(#[from] SandboxError),
}

/// The function's control group is frozen while this exists.
struct FrozenCgroup(Arc<Cgroup>);

impl FrozenCgroup {
    /// Freezes the group, provided that a checkpoint would miss none of its processes.
    fn without_strays(cgroup: &Arc<Cgroup>, sandbox: &Sandbox, runtime: &Handle) -> Result<Self, QuiesceError> {
        cgroup.freeze().map_err(QuiesceError::Freeze)?;
        let frozen = Self(Arc::clone(cgroup));
        runtime.block_on(sandbox.refuse_strays())?;
        Ok(frozen)
    }
}

impl Drop for FrozenCgroup {
    fn drop(&mut self) {
        if let Err(e) = self.0.thaw() {
            tracing::error!(group = self.0.name(), error = %e, "a function that was checkpointed stays frozen");
        }
    }
}

/// A function that is stopped for its checkpoint.
pub(crate) struct QuiescedFunction {
    cgroup: Arc<Cgroup>,
    sandbox: Arc<Sandbox>,
    /// The freezer given to CRIU. `None` where a signal has stopped a process: the version 1 freezer does not let CRIU
    /// seize it. Such a function is frozen again once CRIU has seized the processes it found.
    frozen: Option<FrozenCgroup>,
}

impl QuiescedFunction {
    /// Freezes the function, with no process that a checkpoint would miss. Blocks for a millisecond, or up to some
    /// seconds if processes do not stop: two if it `serves`, else ten.
    ///
    /// # Errors
    /// See [`QuiesceError`]; the function then keeps running.
    pub(crate) fn of(
        cgroup: &Arc<Cgroup>,
        sandbox: &Arc<Sandbox>,
        serves: bool,
        runtime: &Handle,
    ) -> Result<Self, QuiesceError> {
        let mut tries = 0;
        let mut freezes = if serves { 1 } else { FREEZES };
        loop {
            // Checked first: a process that the freezer holds looks like one that sleeps.
            let stopped = some_are_stopped(cgroup);
            match FrozenCgroup::without_strays(cgroup, sandbox, runtime) {
                Ok(frozen) => {
                    return Ok(Self {
                        cgroup: Arc::clone(cgroup),
                        sandbox: Arc::clone(sandbox),
                        frozen: (!stopped).then_some(frozen),
                    });
                }
                Err(QuiesceError::Strays(e)) if e.is_passing() && tries < TRIES => {}
                Err(QuiesceError::Freeze(e @ FreezeError::StillRunning { .. })) if freezes > 1 => {
                    tracing::info!(group = cgroup.name(), error = %e, "a function does not stop yet");
                    freezes -= 1;
                }
                Err(e) => return Err(e),
            }
            tries += 1;
            std::thread::sleep(PAUSE);
        }
    }

    /// Runs `work` once CRIU has all that it needs, while nothing of the function moves.
    ///
    /// # Errors
    /// Returns the error of `work`, or reports a process that CRIU has not seen.
    pub(crate) fn hold<T, E>(&self, runtime: &Handle, work: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        E: From<QuiesceError>,
    {
        let _frozen = match &self.frozen {
            // CRIU holds every process that existed.
            Some(_) => None,
            None => Some(FrozenCgroup::without_strays(&self.cgroup, &self.sandbox, runtime)?),
        };
        work()
    }

    /// Called once CRIU has seized every process it found, before it puts anything into one. What is not seized by then
    /// could write to that. Nothing else can make a process any more.
    ///
    /// # Errors
    /// Reports a process that CRIU has not seen.
    pub(crate) fn seized(&self, runtime: &Handle) -> Result<(), QuiesceError> {
        self.hold(runtime, || Ok(()))
    }

    /// Opens the freezer, which becomes CRIU's third descriptor.
    pub(crate) fn freezer(cgroup: &Cgroup) -> std::io::Result<OwnedFd> {
        File::open(cgroup.function()).map(OwnedFd::from)
    }

    /// Returns the path by which CRIU finds the freezer, if CRIU is to use it.
    pub(crate) fn freezer_path(&self) -> Option<String> {
        self.frozen.as_ref().map(|_| own_descriptor(FREEZER_FD))
    }
}

/// Returns whether a signal has stopped a process inside.
fn some_are_stopped(cgroup: &Cgroup) -> bool {
    let pids = cgroup.pids().unwrap_or_default();
    pids.iter().any(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state follows the name, which may contain anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
