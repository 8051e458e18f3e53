//! File descriptors with chosen numbers: CRIU and the programs it restores look for some by number.

use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};

use nix::fcntl::{FcntlArg, fcntl};

/// The same file by the first free number that is `least` or higher; closed on exec.
///
/// # Errors
/// When there is no such number.
#[expect(unsafe_code, reason = "takes ownership of the descriptor that the kernel has made")]
pub fn duplicate(fd: impl AsFd, least: i32) -> io::Result<OwnedFd> {
    let made = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least))?;
    // SAFETY: the call above made this descriptor for this function alone.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
