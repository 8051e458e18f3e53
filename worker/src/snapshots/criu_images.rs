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
    files: Arc<Files>,
    written: OnceCell<()>,
}

struct Files {
    /// Those that are not in the directory yet.
    in_memory: Mutex<ImagesInMemory>,
    dir: ImagesDir,
}

impl CriuImages {
    /// Takes these images, and the directory of the worker's own files beside them.
    pub(super) fn new(images: ImagesInMemory, dir: ImagesDir) -> Self {
        Self {
            files: Arc::new(Files {
                in_memory: Mutex::new(images),
                dir,
            }),
            written: OnceCell::new(),
        }
    }

    /// Returns the path of the archive of the function's private files.
    pub(crate) fn archive(&self) -> PathBuf {
        self.files.dir.join(FILES_ARCHIVE)
    }

    /// Returns the directory with all images, which the first call writes. Restores link to them.
    ///
    /// # Errors
    /// Returns an error when an image cannot be written. The next call tries again.
    pub(crate) async fn dir(&self) -> Result<&Path, EditError> {
        let write = || async {
            let files = Arc::clone(&self.files);
            let written = tokio::task::spawn_blocking(move || files.write()).await;
            // It fails only in a shutdown.
            written.unwrap_or_else(|e| Err(EditError::File(self.files.dir.to_path_buf(), io::Error::other(e))))
        };
        self.written.get_or_try_init(write).await?;
        Ok(&self.files.dir)
    }
}

impl Files {
    fn write(&self) -> Result<(), EditError> {
        let moved = self.in_memory.lock().move_to(&self.dir);
        moved.map_err(|e| EditError::File(self.dir.to_path_buf(), e))?;
        let_be_read(&self.dir)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn images_are_files_once_criu_restores_and_a_failure_loses_none() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("images");
        let image = ("core-501.img".to_owned(), b"registers".to_vec());
        let images = ImagesInMemory::new(BTreeMap::from([image]));
        let images = CriuImages::new(images, ImagesDir::claim(path.clone()));
        assert!(images.dir().await.is_err(), "there is no directory");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(images.archive(), "archive").unwrap();
        for _ in 0..2 {
            let dir = images.dir().await.unwrap();
            assert_eq!(std::fs::read(dir.join("core-501.img")).unwrap(), b"registers");
            let mode = std::fs::metadata(images.archive()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o644, "CRIU reads them as nobody");
        }
        assert_eq!(images.files.in_memory.lock().bytes(), 0, "they are in memory once");
        drop(images);
        assert!(!path.exists());
    }
}
