//! A sandbox of one function that is about to start.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use rekindle_wire::api::LogStream;

use super::{BegunRestore, Hollow, IdleCriu, Sandbox, SandboxContents};
use crate::host::cgroup::Cgroup;

/// The function's end of an output pipe, and the name of its stream.
pub struct Output {
    /// `stdout` or `stderr`.
    pub stream: LogStream,
    /// The end that the function writes to.
    pub write_end: OwnedFd,
}

impl Output {
    /// Returns the name by which CRIU knows the pipe.
    ///
    /// # Errors
    /// Returns an error when the descriptor cannot be inspected.
    pub fn key(&self) -> io::Result<String> {
        let file = std::fs::File::from(self.write_end.try_clone()?);
        Ok(format!("pipe:[{}]", file.metadata()?.ino()))
    }
}

/// An empty sandbox, ready for a function. Fields drop in order: the sandbox (which kills) before the control group
/// (which must be empty to be removed).
pub struct IsolatedProcess {
    /// The sandbox.
    pub sandbox: Arc<Sandbox>,
    /// The function's standard output and standard error.
    pub outputs: [Output; 2],
    /// A CRIU that waits inside for its order, if there is one. It has the write ends of `outputs` at
    /// [`OUTPUT_FDS`](rekindle_criu::descriptors::OUTPUT_FDS).
    pub criu: Option<IdleCriu>,
    /// A process that restores without CRIU, if there is one.
    pub hollow: Option<Hollow>,
    /// What has been restored ahead by it.
    pub(crate) begun: Option<BegunRestore>,
    /// What is in it, if more restores like this are expected.
    pub(crate) expected: Option<SandboxContents>,
    /// The control group with its limits.
    pub cgroup: Arc<Cgroup>,
}
