//! Starting CRIU inside the sandbox's own namespaces. It then sees no foreign namespace: none is dumped or made anew, and
//! what it restores lands where it runs.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::unistd::{Gid, Uid, execve, setresgid, setresuid};

use crate::protocol::CRIU_DIR;
use crate::spawn::{fork_as, place_fds};

/// Starts `criu swrk 3`, with `real_uid` as its real user when one is given; `fds` become its descriptors 3, 4, …: the RPC socket, the image directory, pipes to inherit.
/// The bundle brings its own loader and libraries, so nothing of the function's filesystem is run. Returns its process id.
///
/// # Errors
/// When the fork fails. What fails in the child shows as exit code 127.
pub fn start(fds: &[OwnedFd], real_uid: Option<u32>) -> io::Result<i32> {
    let loader = CString::new(format!("{CRIU_DIR}/lib/ld.so"))?;
    let libraries = format!("{CRIU_DIR}/lib");
    let program = format!("{CRIU_DIR}/criu");
    let argv = ["ld.so", "--library-path", &libraries, &program, "swrk", "3"]
        .into_iter()
        .map(CString::new)
        .collect::<Result<Vec<_>, _>>()?;
    let env = [CString::new("PATH=/usr/bin:/bin")?];
    match fork_as(None)? {
        0 => {
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let failed = match place_fds(&borrowed).and_then(|()| take_real_user(real_uid)) {
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
