//! The directory of one CRIU.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};

/// A directory for the images that a CRIU reads, and for what it writes. Removed on drop with its content.
#[derive(Debug)]
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates an empty directory.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn make(dir: PathBuf) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }

    /// Gives the directory to a user and group of the host: the root of a sandbox, whose CRIU writes its log there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn give_to(&self, owner: u32) -> io::Result<()> {
        chown(&self.0, Some(owner), Some(owner))
    }

    /// Creates hard links to these images.
    ///
    /// # Errors
    /// If one cannot be linked.
    pub fn link(&self, images: &Path) -> io::Result<()> {
        self.link_but(images, "")
    }

    /// Creates hard links to these images, except the one with this name.
    pub(crate) fn link_but(&self, images: &Path, without: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(images)? {
            let entry = entry?;
            if entry.file_name() != without {
                std::fs::hard_link(entry.path(), self.0.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), error = %e, "cannot remove a criu's directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_links_the_images_and_ends_with_its_content() {
        let parent = tempfile::tempdir().unwrap();
        let images = parent.path().join("images");
        std::fs::create_dir(&images).unwrap();
        for name in ["inventory.img", "core-1.img"] {
            std::fs::write(images.join(name), name).unwrap();
        }
        let path = parent.path().join("scratch");
        let scratch = ScratchDir::make(path.clone()).unwrap();
        assert!(ScratchDir::make(path.clone()).is_err(), "there already");
        scratch.link_but(&images, "inventory.img").unwrap();
        assert!(path.join("core-1.img").exists() && !path.join("inventory.img").exists());
        drop(scratch);
        assert!(!path.exists() && images.join("core-1.img").exists());
    }
}
