//! Starts CRIU inside the sandbox's own namespaces, to restore. CRIU then sees no foreign namespace: it creates none,
//! and restores processes where they will run. It is the sandbox's root, and therefore nobody on the host.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::unistd::{execve, fchdir};

use crate::spawn::{fork_as, join_group, place_fds};

/// Number of CRIU's descriptor of `/dev/userfaultfd`: higher than those used in a restore, and closed before one
/// ([`ancestor`](crate::ancestor)).
pub const USERFAULT_FD: i32 = 60;
/// CRIU's probe is below [`CRIU_PROBE_CACHE`](crate::protocol::CRIU_PROBE_CACHE). No plugin is there, nor in any other
/// place that the function's files could provide.
const ENVIRONMENT: [&CStr; 4] = [
    c"PATH=/usr/bin:/bin",
    // Symbols are resolved while it waits, not during a restore.
    c"LD_BIND_NOW=1",
    c"XDG_RUNTIME_DIR=/run",
    c"CRIU_LIBS_DIR=/run",
];

/// Starts `criu swrk 3` from the directory `bundle`, in the control group of this `cgroup.procs` if given. `fds` become
/// its descriptors 3, 4, …: the RPC socket, then pipes to inherit. `userfault` becomes [`USERFAULT_FD`]. The bundle
/// has its own loader and libraries, so nothing from the function's filesystem is executed. Returns its process id.
///
/// # Errors
/// If the fork fails. Failures in the child appear as exit code 127.
pub fn start(
    bundle: &OwnedFd,
    fds: &[OwnedFd],
    group: Option<&OwnedFd>,
    userfault: Option<&OwnedFd>,
) -> io::Result<i32> {
    match fork_as(None)? {
        0 => {
            let Err(failed) = become_criu(bundle, fds, group, userfault);
            eprintln!("rekindle-init: run criu: {failed}");
            std::process::exit(127);
        }
        pid => Ok(pid),
    }
}

fn become_criu(
    bundle: &OwnedFd,
    fds: &[OwnedFd],
    group: Option<&OwnedFd>,
    userfault: Option<&OwnedFd>,
) -> io::Result<std::convert::Infallible> {
    group.map_or(Ok(()), join_group)?;
    // CRIU stays there until it is ordered to restore. By then the mount point of the directory is gone.
    fchdir(bundle)?;
    let numbered = fds.iter().map(AsFd::as_fd).zip(3..);
    let userfault = userfault.map(|fd| (fd.as_fd(), USERFAULT_FD));
    place_fds(&numbered.chain(userfault).collect::<Vec<_>>())?;
    run(&ENVIRONMENT)
}

/// Runs `criu swrk 3` of the bundle, which is the working directory.
pub(crate) fn run(environment: &[&CStr]) -> io::Result<std::convert::Infallible> {
    let argv = [c"ld.so", c"--library-path", c"lib", c"./criu", c"swrk", c"3"];
    Ok(execve(c"lib/ld.so", &argv, environment)?)
}
