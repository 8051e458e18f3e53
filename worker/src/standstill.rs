//! The function at a standstill, for as long as its checkpoint looks at it:
//!
//! ```text
//! running ──freeze──> frozen ──no strays?──> criu seizes every task, then thaws; at its end freezes ──dropped──> running, or stopped
//!                        └──a stray, or too late: thawed, no checkpoint
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

use crate::cgroup::FreezeError;
use crate::instance::Parts;
use crate::sandbox::SandboxError;

/// The descriptor of the function's freezer in a CRIU that dumps, behind its socket and the image directory.
const FREEZER_FD: i32 = 5;
/// How often a function that is about to start a program is left to do so, and for how long.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(4);

/// Why a function cannot be checkpointed as it is.
#[derive(Debug, thiserror::Error)]
pub enum StandstillError {
    /// It does not stand still.
    #[error("bring the function to a standstill")]
    Freeze(#[source] FreezeError),
    /// It has a process that a checkpoint would miss.
    #[error(transparent)]
    Strays(#[from] SandboxError),
}

/// While this exists, the function stands still but for what CRIU does with it.
pub(crate) struct Standstill(Arc<Parts>);

impl Standstill {
    /// Brings it about, with no process that a checkpoint would miss. Blocks for a millisecond, up to some seconds where processes do not halt.
    ///
    /// # Errors
    /// See [`StandstillError`]; the function goes on then.
    pub(crate) fn of(parts: &Arc<Parts>, runtime: &Handle) -> Result<Self, StandstillError> {
        let mut tries = 0;
        loop {
            parts.cgroup.freeze().map_err(StandstillError::Freeze)?;
            let frozen = Self(Arc::clone(parts));
            match runtime.block_on(parts.sandbox.refuse_strays()) {
                Ok(()) => return Ok(frozen),
                Err(e) if e.is_passing() && tries < TRIES => {}
                Err(e) => return Err(e.into()),
            }
            tries += 1;
            drop(frozen);
            std::thread::sleep(PAUSE);
        }
    }

    /// The freezer, to be CRIU's third descriptor.
    pub(crate) fn freezer(parts: &Parts) -> std::io::Result<OwnedFd> {
        File::open(parts.cgroup.function()).map(OwnedFd::from)
    }

    /// The path by which CRIU finds it.
    pub(crate) fn freezer_path() -> String {
        own_descriptor(FREEZER_FD)
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        if let Err(e) = self.0.cgroup.thaw() {
            tracing::error!(group = self.0.cgroup.name(), error = %e, "a function that was checkpointed stays frozen");
        }
    }
}
