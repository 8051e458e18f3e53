//! Errors of sandboxes.

use std::io;

use super::control::ControlError;
use super::ids::IdsError;

/// Why a sandbox could not be created or used.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The init program could not be started.
    #[error("start {0}")]
    Start(String, #[source] io::Error),
    /// Init does not reply as it should.
    #[error("{0}")]
    Control(&'static str, #[source] ControlError),
    /// A namespace could not be opened.
    #[error("open a namespace of the sandbox")]
    Namespace(#[source] io::Error),
    /// Its files are not on this host.
    #[error("find the files of the sandbox")]
    Layers(#[source] io::Error),
    /// There are no ids for it.
    #[error("take user ids for the sandbox")]
    Ids(#[source] IdsError),
}

impl SandboxError {
    /// Returns whether the same request may succeed in a moment.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Control(_, ControlError::NotNow(_)))
    }

    /// Returns whether a process that has outlived its parent is in the way.
    pub fn is_orphan(&self) -> bool {
        matches!(self, Self::Control(_, ControlError::Orphan(_)))
    }

    /// Returns what is in the way of a checkpoint and of the function's making, as init says it.
    pub(crate) fn of_function(&self) -> Option<&str> {
        match self {
            Self::Control(_, ControlError::NotNow(told) | ControlError::Orphan(told) | ControlError::Holds(told)) => {
                Some(told)
            }
            _ => None,
        }
    }
}
