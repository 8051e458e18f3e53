//! Where CRIU dumps: on the run directory's tmpfs, or on the cache's disk for instances with much memory (decision 9).

use std::io;
use std::path::{Path, PathBuf};

/// Relative to the run directory.
const IN_MEMORY: &str = "images";
/// Relative to the cache directory.
const ON_DISK: &str = "dumps";

/// Creates the directory on disk, and removes what a killed worker left in it.
pub(crate) fn prepare(cache: &Path) -> io::Result<()> {
    let dir = cache.join(ON_DISK);
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)
}

/// The directories of dumps' directories.
#[derive(Debug, Clone)]
pub struct DumpDirs {
    in_memory: PathBuf,
    on_disk: PathBuf,
    in_memory_bytes: u64,
}

impl DumpDirs {
    /// Creates it for these directories of the worker. Instances with more than `in_memory_bytes` of memory are dumped
    /// to the cache's disk.
    pub(crate) fn new(run: &Path, cache: &Path, in_memory_bytes: u64) -> Self {
        Self {
            in_memory: run.join(IN_MEMORY),
            on_disk: cache.join(ON_DISK),
            in_memory_bytes,
        }
    }

    /// Returns the directory for the dump of an instance that uses `memory_bytes`.
    pub(crate) fn choose(&self, memory_bytes: u64) -> &Path {
        if memory_bytes <= self.in_memory_bytes {
            &self.in_memory
        } else {
            &self.on_disk
        }
    }
}

/// A dump's directory, removed on drop.
#[derive(Debug)]
pub(crate) struct DumpDir(PathBuf);

impl DumpDir {
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        std::fs::create_dir(path)?;
        Ok(Self(path.to_owned()))
    }

    pub(crate) fn empty(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DumpDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), error = %e, "cannot remove an image directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_worker_left_is_gone_and_a_dump_ends_with_its_directory() {
        let cache = tempfile::tempdir().unwrap();
        prepare(cache.path()).unwrap();
        let left = cache.path().join(ON_DISK).join("dump-i-1");
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("pages-1.img"), "pages").unwrap();
        prepare(cache.path()).unwrap();
        assert!(!left.exists());
        let dump = DumpDir::make(&left).unwrap();
        assert!(DumpDir::make(&left).is_err(), "there already");
        std::fs::write(dump.path().join("pages-1.img"), "pages").unwrap();
        std::fs::create_dir(dump.path().join("known")).unwrap();
        std::os::unix::fs::symlink("known", dump.path().join("parent")).unwrap();
        dump.empty().unwrap();
        assert_eq!(std::fs::read_dir(dump.path()).unwrap().count(), 0);
        std::fs::write(dump.path().join("pages-1.img"), "pages").unwrap();
        drop(dump);
        assert!(!left.exists());
    }
}
