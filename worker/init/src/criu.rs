//! Starting CRIU inside the sandbox's own namespaces. It then sees no foreign namespace: none is dumped or made anew, and
//! what it restores lands where it runs.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use nix::unistd::{Gid, Uid, chdir, execve, setresgid, setresuid};

use crate::spawn::{fork_as, join_group, place_fds};

/// Starts `criu swrk 3` from the bundle, with `real_uid` as its real user and in the control group of this `cgroup.procs` when they are
/// given; `fds` become its descriptors 3, 4, …: the RPC socket, then pipes to inherit. The bundle brings its own loader and libraries, so nothing of the function's
/// filesystem is run. Returns its process id.
///
/// # Errors
/// When the fork fails. What fails in the child shows as exit code 127.
pub fn start(bundle: &Path, fds: &[OwnedFd], real_uid: Option<u32>, group: Option<&OwnedFd>) -> io::Result<i32> {
    let path = |name: &str| CString::new(bundle.join(name).into_os_string().into_vec());
    let (loader, libraries, program) = (path("lib/ld.so")?, path("lib")?, path("criu")?);
    let argv = [c"ld.so", c"--library-path", &libraries, &program, c"swrk", c"3"];
    // Symbols are looked up while it waits, and not in a restore.
    let env = [c"PATH=/usr/bin:/bin", c"LD_BIND_NOW=1"];
    match fork_as(None)? {
        0 => {
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            // Not the directory the worker was started in: one that is replaced when the files are laid out.
            let joined = group.map_or(Ok(()), join_group);
            let placed = joined
                .and_then(|()| Ok(chdir("/")?))
                .and_then(|()| place_fds(&borrowed));
            let failed = match placed.and_then(|()| take_real_user(real_uid)) {
                Ok(()) => match execve(&loader, &argv, &env) {
                    Ok(never) => match never {},
                    Err(e) => e.into(),
                },
                Err(e) => e,
            };
            eprintln!("rekindle-init: run criu: {failed}");
            std::process::exit(127);
        }
        pid => Ok(pid),
    }
}

fn take_real_user(real_uid: Option<u32>) -> io::Result<()> {
    let Some(id) = real_uid else { return Ok(()) };
    let (root, root_group) = (Uid::from_raw(0), Gid::from_raw(0));
    setresgid(Gid::from_raw(id), root_group, root_group)?;
    setresuid(Uid::from_raw(id), root, root)?;
    Ok(())
}
