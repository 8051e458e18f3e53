//! The hollow process of a sandbox: it waits for a restore program, and becomes the function's first process. See
//! `restorer/`.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, chdir, fexecve};

use crate::protocol::FUNCTION_PID;
use crate::spawn::{fork_as, join_group, place_fds};

/// Numbers of its descriptors: the socket to the worker, the device that creates userfaultfds, and its program, which
/// closes.
const CONTROL: i32 = 3;
const DEVICE: i32 = 4;
const PROGRAM: i32 = 5;

/// Its program, which all sandboxes share and none can change. `None` if the kernel refused it.
static SHARED: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Called in the zygote: prepares the program for all sandboxes. Without it, CRIU restores everything.
pub(crate) fn prepare() {
    let program = seal(rekindle_hollow::PROGRAM).inspect_err(|e| eprintln!("rekindle-init: keep a program: {e}"));
    // Only the first call has an effect.
    let _already = SHARED.set(program.ok());
}

/// A file of these bytes that can be executed and never changed.
fn seal(program: &[u8]) -> io::Result<OwnedFd> {
    if program.is_empty() {
        return Err(io::Error::other("there is none for this processor"));
    }
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and let every such file be executed.
    let file = match memfd_create("hollow", flags | MFdFlags::from_bits_retain(libc::MFD_EXEC)) {
        Err(Errno::EINVAL) => memfd_create("hollow", flags)?,
        other => other?,
    };
    let mut file = File::from(file);
    file.write_all(program)?;
    let all = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(all))?;
    Ok(file.into())
}

/// Starts the hollow process as process [`FUNCTION_PID`], in the control group of this `cgroup.procs`. `control` is its
/// end of the socket to the worker, `device` creates userfaultfds.
///
/// # Errors
/// If there is no program, or the fork fails. A failure in the child closes the socket.
pub(crate) fn start(control: &OwnedFd, device: &OwnedFd, group: &OwnedFd) -> io::Result<i32> {
    let program = SHARED.get().and_then(Option::as_ref);
    let program = program.ok_or_else(|| io::Error::other("there is no program for it"))?;
    match fork_as(Some(FUNCTION_PID))? {
        0 => {
            let Err(failed) = become_hollow(program, control, device, group);
            eprintln!("rekindle-init: run the hollow process: {failed}");
            std::process::exit(127);
        }
        pid => Ok(pid),
    }
}

fn become_hollow(
    program: &OwnedFd,
    control: &OwnedFd,
    device: &OwnedFd,
    group: &OwnedFd,
) -> io::Result<std::convert::Infallible> {
    join_group(group)?;
    // Where the sandbox's files are later, as for init.
    chdir("/")?;
    place_fds(&[
        (control.as_fd(), CONTROL),
        (device.as_fd(), DEVICE),
        (program.as_fd(), PROGRAM),
    ])?;
    let program = descriptor(PROGRAM);
    fcntl(program, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(fexecve(program, &[c"hollow"], &[] as &[&std::ffi::CStr])?)
}

#[expect(unsafe_code, reason = "a descriptor that was just placed")]
fn descriptor(number: i32) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: `place_fds` has opened it, and nothing closes it before the process is replaced.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }
}

/// Ends the hollow process, which waits: another takes its id.
pub(crate) fn end(pid: i32) {
    let pid = Pid::from_raw(pid);
    // It is our child and not yet reaped. If it has ended by itself, there is nothing to do.
    let _ended = kill(pid, Signal::SIGKILL);
    while waitpid(pid, Some(WaitPidFlag::__WALL)) == Err(Errno::EINTR) {}
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_program_can_be_run_and_not_changed() {
        let file = seal(b"#!/bin/sh\n").unwrap();
        let mut file = File::from(file);
        assert_eq!(file.write_all(b"x").unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(file.set_len(0).is_err());
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let mode = fs::metadata(path).unwrap();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o111,
            0o111
        );
        assert!(seal(b"").is_err());
    }
}
