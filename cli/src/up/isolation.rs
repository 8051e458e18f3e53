//! A mount namespace for the platform: every mount of the worker vanishes with the platform's last process, however
//! that ended. Entered while the process has one thread, since a namespace belongs to threads.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const NONE: Option<&str> = None;
/// The usual limit of open files, if it cannot be queried.
const USUAL_DESCRIPTORS: u64 = 1024;

/// Enters a mount namespace of its own, and mounts a tmpfs on `run` that only this process and its children see.
pub(super) fn enter(run: &Path) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("no mount namespace of its own: run fn up as root")?;
    // Slave, not private: what the host unmounts goes away here as well, and nothing of ours reaches the host.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)
        .context("the host's mounts cannot be separated")?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(run)
        .and_then(|()| std::fs::set_permissions(run, Permissions::from_mode(0o700)))
        .with_context(|| format!("{}: the run directory cannot be made", run.display()))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("rekindle"), run, Some("tmpfs"), flags, Some("mode=0700"))
        .with_context(|| format!("{}: no tmpfs can be mounted", run.display()))
}

/// Raises the limit of descriptors as far as root may: each instance and each connection holds several. Returns the
/// limit.
pub(super) fn raise_descriptor_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return USUAL_DESCRIPTORS;
    };
    if soft >= hard {
        return soft;
    }
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            eprintln!("fn: the limit of open files stays {soft}: {error}");
            soft
        }
    }
}

/// Number of client connections that fit into a `limit` of descriptors if each needs `each`, including those behind it.
/// A quarter is left for everything else.
pub(super) fn connections_within(limit: u64, each: u64, wanted: usize) -> usize {
    let fit = limit / 4 * 3 / each.max(1);
    usize::try_from(fit).map_or(wanted, |fit| wanted.min(fit).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!(connections_within(1 << 20, 2, 16_384), 16_384);
        assert_eq!(connections_within(1_024, 2, 16_384), 384);
        assert_eq!(connections_within(1_024, 4, 16_384), 192);
        assert_eq!(connections_within(0, 4, 16_384), 1);
    }
}
