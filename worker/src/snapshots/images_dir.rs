//! The directory of a snapshot's images.

use std::path::{Path, PathBuf};

use rekindle_snapshotter::{OpenError, Snapshot};

use super::notes::{FILE as NOTES_FILE, FILES_ARCHIVE};

/// A directory of images, removed on drop.
pub struct ImagesDir(PathBuf);

impl ImagesDir {
    /// Takes over `path`, which may only contain what a killed worker left.
    pub(super) fn claim(path: PathBuf) -> Self {
        // If something cannot be removed, the creation of the first file reports it.
        drop(std::fs::remove_dir_all(&path));
        Self(path)
    }
}

impl std::ops::Deref for ImagesDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for ImagesDir {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.0) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(dir = %self.0.display(), error = %e, "cannot remove a snapshot's images");
            }
            _ => {}
        }
    }
}

/// Writes what the worker has added to a snapshot's images to `dir`, which does not exist yet. Nothing else is written:
/// CRIU reads some images merely because they exist, and only images are verified.
pub(super) async fn write_extras(snapshot: &Snapshot, dir: &Path) -> Result<(), OpenError> {
    std::fs::create_dir_all(dir).map_err(|cause| OpenError::Write {
        path: dir.to_owned(),
        cause,
    })?;
    // Those that are separate objects are fetched at once: one round trip.
    let own = |name: &&str| [NOTES_FILE, FILES_ARCHIVE].contains(name);
    let extras = snapshot.extra_files().filter(own).map(|name| {
        let path = dir.join(name);
        async move { snapshot.write_extra(name, &path).await }
    });
    // All of them finish, even if one fails: the directory must not be removed while something is being written there.
    futures::future::join_all(extras).await.into_iter().collect()
}

/// Returns the size of the files in `dir`.
pub(super) fn size_of(dir: &Path) -> std::io::Result<u64> {
    let files = std::fs::read_dir(dir)?;
    files.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
