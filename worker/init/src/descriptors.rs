//! File descriptors with chosen numbers: CRIU and the programs it restores expect some at fixed numbers.

use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};

use nix::fcntl::{FcntlArg, fcntl};

/// Duplicates a descriptor to the lowest free number from `least` on, with close-on-exec.
///
/// # Errors
/// If there is no such number.
#[expect(unsafe_code, reason = "takes ownership of the descriptor that the kernel has made")]
pub fn duplicate(fd: impl AsFd, least: i32) -> io::Result<OwnedFd> {
    let made = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least))?;
    // SAFETY: the preceding call created this descriptor for this function only.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
