//! Starting CRIU inside the sandbox's own namespaces, to restore. It then sees no foreign namespace: none is made
//! anew, and what it restores lands where it runs. It is the sandbox's root, and so nobody on the host.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::unistd::{execve, fchdir};

use crate::spawn::{fork_as, join_group, place_fds};

/// Where CRIU finds `/dev/userfaultfd`: above what it restores with, and closed before it restores
/// ([`ancestor`](crate::ancestor)).
pub const USERFAULT_FD: i32 = 60;
/// Below [`CRIU_PROBE_CACHE`](crate::protocol::CRIU_PROBE_CACHE) is its probe; no plugin is there, nor in any other
/// place that the function's files could have.
const ENVIRONMENT: [&CStr; 4] = [
    c"PATH=/usr/bin:/bin",
    // Symbols are looked up while it waits, and not in a restore.
    c"LD_BIND_NOW=1",
    c"XDG_RUNTIME_DIR=/run",
    c"CRIU_LIBS_DIR=/run",
];

/// Starts `criu swrk 3` from the directory `bundle`, in the control group of this `cgroup.procs` when it is given;
/// `fds` become its descriptors 3, 4, …: the RPC socket, then pipes to inherit; `userfault` is [`USERFAULT_FD`]. The
/// bundle brings its own loader and libraries, so nothing of the function's filesystem is run. Returns its process
/// id.
///
/// # Errors
/// When the fork fails. What fails in the child shows as exit code 127.
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
    // It stays there until it is ordered to restore: what the directory was mounted on is gone by then.
    fchdir(bundle)?;
    let numbered = fds.iter().map(AsFd::as_fd).zip(3..);
    let userfault = userfault.map(|fd| (fd.as_fd(), USERFAULT_FD));
    place_fds(&numbered.chain(userfault).collect::<Vec<_>>())?;
    run(&ENVIRONMENT)
}

/// Runs `criu swrk 3` of the bundle that is the working directory.
pub(crate) fn run(environment: &[&CStr]) -> io::Result<std::convert::Infallible> {
    let argv = [c"ld.so", c"--library-path", c"lib", c"./criu", c"swrk", c"3"];
    Ok(execve(c"lib/ld.so", &argv, environment)?)
}
