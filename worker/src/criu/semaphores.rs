//! Rejects eventfds whose reads take one (`EFD_SEMAPHORE`). The kernel accepts that flag only when it creates an
//! eventfd, and CRIU creates all of them without it. In a copy the first read would take the whole count. So a function
//! with such an eventfd is not checkpointed. Kernels before 6.5 do not report the flag.

use std::io;

use nix::unistd::Pid;
use rekindle_verify::Verified;
use rustix::fs::OFlags;

use crate::host::sandbox::InnerProc;

/// How the kernel reports the flag.
const MARK: &str = "eventfd-semaphore: 1";

/// Why there can be no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum SemaphoreError {
    /// A copy would have another kind of counter.
    #[error(
        "descriptor {fd} of process {pid} is an eventfd with EFD_SEMAPHORE, which no snapshot keeps; make it in an \
         after-restore hook, use a pipe or a POSIX semaphore instead, or set snapshot = false in fn.toml"
    )]
    Semaphore {
        /// The process's id in its pid namespace.
        pid: u32,
        /// The descriptor's number.
        fd: u32,
    },
    /// The descriptors cannot be inspected.
    #[error("read what the kernel says of the function's descriptors")]
    Read(#[from] io::Error),
}

/// Rejects a checkpoint if one of the processes that `verified` describes has such a descriptor. The processes run
/// below `init`, a process id of the host. Blocks for some microseconds an eventfd.
///
/// # Errors
/// Returns the first one found.
pub fn refuse(init: Pid, verified: &Verified) -> Result<(), SemaphoreError> {
    let proc = InnerProc::of(init)?;
    for process in &verified.processes {
        let pid = process.tree.pid;
        let is_counter = |id: u32| verified.files.get(&id).is_some_and(|file| file.efd.is_some());
        for (fd, _) in process
            .descriptors
            .iter()
            .filter(|(_, descriptor)| is_counter(descriptor.id))
        {
            let told = io::read_to_string(proc.open(&format!("{pid}/fdinfo/{fd}"), OFlags::RDONLY)?)?;
            if told.lines().any(|line| line == MARK) {
                return Err(SemaphoreError::Semaphore { pid, fd: *fd });
            }
        }
    }
    Ok(())
}
