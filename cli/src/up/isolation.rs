//! A mount namespace for the platform: every mount of the worker vanishes with the platform's last process, however that
//! ended. Called while the process has one thread, as a namespace belongs to threads.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const NONE: Option<&str> = None;

/// Enters a mount namespace of its own, and mounts a tmpfs on `run`, seen by this process and its children only.
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

/// As many descriptors as root allows: each instance holds several.
pub(super) fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        eprintln!("fn up: the limit of open files stays {soft}: {error}");
    }
}
