//! The images of an open snapshot for CRIU. They are in memory until CRIU restores from them: most snapshots have a
//! restore program, which needs none.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::edit::{EditError, let_be_read};
use super::image_set::ImagesInMemory;
use super::images_dir::ImagesDir;
use super::notes::FILES_ARCHIVE;

/// Images, and the directory that CRIU reads them from.
pub(crate) struct CriuImages {
    /// `None` once they are in the directory.
    in_memory: Arc<Mutex<Option<ImagesInMemory>>>,
    dir: ImagesDir,
    written: OnceCell<()>,
}

impl CriuImages {
    /// Takes these images, and the directory of the worker's own files beside them.
    pub(super) fn new(images: ImagesInMemory, dir: ImagesDir) -> Self {
        Self {
            in_memory: Arc::new(Mutex::new(Some(images))),
            dir,
            written: OnceCell::new(),
        }
    }

    /// Returns the path of the archive of the function's private files.
    pub(crate) fn archive(&self) -> PathBuf {
        self.dir.join(FILES_ARCHIVE)
    }

    /// Returns the directory with all images, which the first call writes. Restores link to them.
    ///
    /// # Errors
    /// Returns an error when an image cannot be written. The next call tries again.
    pub(crate) async fn dir(&self) -> Result<&Path, EditError> {
        let write = || async {
            let (images, dir) = (Arc::clone(&self.in_memory), self.dir.to_path_buf());
            let failed = {
                let dir = dir.clone();
                move |e| EditError::File(dir, e)
            };
            let written = tokio::task::spawn_blocking(move || {
                let mut images = images.lock();
                if let Some(images) = images.as_ref() {
                    images.write_to(&dir).map_err(|e| EditError::File(dir.clone(), e))?;
                }
                let_be_read(&dir)?;
                *images = None;
                Ok(())
            });
            // It fails only in a shutdown.
            written.await.map_err(|e| failed(io::Error::other(e)))?
        };
        self.written.get_or_try_init(write).await?;
        Ok(&self.dir)
    }
}
