//! The paths of a platform on a machine, derived from the directories it was given. Several platforms may run side by
//! side with different directories, as tests do.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::args::PlatformDirs;

/// The run directory whose cgroup has the plain name.
const DEFAULT_RUN: &str = "/run/rekindle";

/// The paths and names of one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Kept: functions, snapshots, metadata, keys, logs.
    pub(crate) data: PathBuf,
    /// Can be made again.
    pub(crate) cache: PathBuf,
    /// Lasts as long as the platform runs.
    pub(crate) run: PathBuf,
    /// The name of its cgroup under each hierarchy.
    pub(crate) cgroup: String,
}

impl Layout {
    /// The layout under `places`, made absolute.
    pub(crate) fn of(places: &PlatformDirs) -> std::io::Result<Self> {
        let run = std::path::absolute(&places.run)?;
        Ok(Self {
            data: std::path::absolute(&places.data)?,
            cache: std::path::absolute(&places.cache)?,
            cgroup: cgroup_name(&run),
            run,
        })
    }

    /// The log of a platform in the background.
    pub(crate) fn log(&self) -> PathBuf {
        self.data.join("rekindle.log")
    }

    /// The start's progress, for whoever waits for it.
    pub(crate) fn phase(&self) -> PathBuf {
        self.run.join("phase")
    }

    /// How the running platform's object store is reached; holds no secret.
    pub(crate) fn store(&self) -> PathBuf {
        self.run.join("store.json")
    }

    /// The platform's own objects: snapshots, layers, uploads.
    pub(crate) fn objects(&self) -> PathBuf {
        self.data.join("s3")
    }

    /// Uploads while they arrive.
    pub(crate) fn spool(&self) -> PathBuf {
        self.data.join("spool")
    }

    /// A worker's kept data: its id, functions' logs.
    pub(crate) fn worker_data(&self) -> PathBuf {
        self.data.join("worker")
    }

    /// What a worker can fetch again.
    pub(crate) fn worker_cache(&self) -> PathBuf {
        self.cache.join("worker")
    }

    /// The worker's own run directory, on a tmpfs inside the platform's mount namespace.
    pub(crate) fn worker_run(&self) -> PathBuf {
        self.run.join("worker")
    }
}

/// Makes missing directories, accessible only to root.
pub(crate) fn make_private(dirs: impl IntoIterator<Item = PathBuf>) -> Result<()> {
    for dir in dirs {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("{}: the directory cannot be made", dir.display()))?;
    }
    Ok(())
}

/// `rekindle`, followed by a number derived from the run directory unless that is the default (FNV-1a).
fn cgroup_name(run: &Path) -> String {
    if run == Path::new(DEFAULT_RUN) {
        return "rekindle".to_owned();
    }
    let bytes = run.as_os_str().as_encoded_bytes();
    let hash = bytes
        .iter()
        .fold(0x811C_9DC5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    format!("rekindle-{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_with_other_run_directories_have_other_cgroups() {
        assert_eq!(cgroup_name(Path::new("/run/rekindle")), "rekindle");
        let (a, b) = (cgroup_name(Path::new("/tmp/a")), cgroup_name(Path::new("/tmp/b")));
        assert_ne!(a, b);
        assert!(a.starts_with("rekindle-"));
    }
}
