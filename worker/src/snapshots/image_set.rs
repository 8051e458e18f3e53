//! The images of a checkpoint by name: files in a directory, or bytes in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Images that can be read and replaced by name.
pub(crate) trait ImageSet {
    /// Returns the names of all images.
    ///
    /// # Errors
    /// Returns an error when the directory cannot be read.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Returns an image.
    ///
    /// # Errors
    /// Returns an error when there is none of this name, or it cannot be read.
    fn read(&self, name: &str) -> io::Result<Cow<'_, [u8]>>;

    /// Replaces an image, or adds it.
    ///
    /// # Errors
    /// Returns an error when it cannot be written.
    fn write(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<()>;

    /// Returns whether there is an image of this name.
    fn contains(&self, name: &str) -> bool;

    /// Returns where it is, for error messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// A directory of images. What it does blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Directory<'a>(pub(crate) &'a Path);

impl ImageSet for Directory<'_> {
    fn names(&self) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<std::fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        std::fs::read_dir(self.0)?.map(name).collect()
    }

    fn read(&self, name: &str) -> io::Result<Cow<'_, [u8]>> {
        std::fs::read(self.path(name)).map(Cow::Owned)
    }

    fn write(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        std::fs::write(self.path(name), bytes)
    }

    fn contains(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

pub(crate) struct ImagesInMemory(BTreeMap<String, Vec<u8>>);

impl ImagesInMemory {
    pub(crate) fn new(images: BTreeMap<String, Vec<u8>>) -> Self {
        Self(images)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// Returns their size, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Returns the size of the pages that CRIU reads by itself, in bytes.
    pub(crate) fn bytes_of_pages(&self) -> u64 {
        let pages = self.iter().filter(|(name, _)| name.starts_with("pages-"));
        pages.map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Moves all of them to a directory, so that each is in memory once. Those after a failure stay. Blocks.
    ///
    /// # Errors
    /// Returns an error when one cannot be written.
    pub(crate) fn move_to(&mut self, dir: &Path) -> io::Result<()> {
        while let Some(image) = self.0.first_entry() {
            std::fs::write(dir.join(image.key()), image.get())?;
            image.remove();
        }
        Ok(())
    }
}

impl ImageSet for ImagesInMemory {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Cow<'_, [u8]>> {
        let bytes = self.0.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Cow::Borrowed(bytes))
    }

    fn write(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.0.insert(name.to_owned(), bytes);
        Ok(())
    }

    fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }
}
