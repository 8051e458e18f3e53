//! The directory of one build. It is removed when the build ends, whatever the outcome.
//!
//! ```text
//! WORK_DIR/build-ID/app   the uploaded folder    deps   python packages    tmp   the installers' own
//!                   root  a container image's root filesystem
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use rekindle_confined::tree::remove_tree;
use uuid::Uuid;

use crate::host::confined::fresh_id;

const PREFIX: &str = "build-";

#[derive(Debug)]
pub(super) struct BuildDir {
    pub(super) path: PathBuf,
    /// The user and group of the processes that run in it.
    pub(super) id: u32,
}

impl BuildDir {
    pub(super) fn make(work_dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(work_dir)?;
        let path = fs::canonicalize(work_dir)?.join(format!("{PREFIX}{}", Uuid::new_v4().simple()));
        fs::create_dir(&path)?;
        let build_dir = Self { path, id: fresh_id() };
        // Owned by root: the processes that run in it cannot exchange any of these directories for a link.
        fs::set_permissions(&build_dir.path, fs::Permissions::from_mode(0o700))?;
        for name in ["app", "deps", "root", "tmp", "tmp/home"] {
            let directory = build_dir.path.join(name);
            fs::create_dir(&directory)?;
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
            lchown(&directory, Some(build_dir.id), Some(build_dir.id))?;
        }
        Ok(build_dir)
    }

    pub(super) fn app(&self) -> PathBuf {
        self.path.join("app")
    }

    pub(super) fn deps(&self) -> PathBuf {
        self.path.join("deps")
    }

    pub(super) fn root(&self) -> PathBuf {
        self.path.join("root")
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.path.join("tmp")
    }
}

impl Drop for BuildDir {
    fn drop(&mut self) {
        // What is left is swept at the worker's next start.
        if let Err(error) = remove_tree(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "what a build left stays until the next start");
        }
    }
}

/// Removes what builds of a dead worker left in `work_dir`. Must be called before the first build.
///
/// # Errors
/// Returns an error when the directory cannot be read.
pub fn sweep(work_dir: &Path) -> io::Result<()> {
    let cache = work_dir.join(super::DEPS_CACHE);
    for (directory, prefixes) in [(work_dir, &[PREFIX, super::LAYER_PREFIX][..]), (&cache, &[".new-"][..])] {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Folders that were fetched, and layers that were not packed to their end.
            let is_unfinished = name.ends_with(super::SOURCE_SUFFIX) || name.contains(".tmp-");
            if is_unfinished || prefixes.iter().any(|p| name.starts_with(p)) {
                let path = entry.path();
                let removed = if path.is_dir() {
                    remove_tree(&path)
                } else {
                    fs::remove_file(&path)
                };
                if let Err(error) = removed {
                    tracing::warn!(path = %path.display(), %error, "what a build left stays");
                }
            }
        }
    }
    Ok(())
}
