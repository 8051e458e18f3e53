//! Contents of an image directory: its inventory, and which pages image belongs to which pagemap.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_criu::images::{Inventory, StoredPagemap};

use super::error::{InterchangeError, image_at, io_at};
use super::pages::PageFile;

/// Default bytes of memory per block, as in CRIU.
pub const BLOCK_BYTES_DEFAULT: u64 = 256 << 10;
/// The link to the directory of the previous dump.
pub(super) const PARENT: &str = "parent";
pub(super) const INVENTORY: &str = "inventory.img";

/// A pagemap and its pages image.
pub(crate) struct Pair {
    /// `pagemap-*.img`.
    pub(crate) pagemap: String,
    /// `pages-*.img`.
    pub(crate) pages: String,
    pub(crate) map: StoredPagemap,
}

pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) inventory: Vec<u8>,
    /// Pagemaps by name.
    pub(crate) pairs: Vec<Pair>,
    /// Whether there is a `parent`.
    pub(crate) has_parent: bool,
}

impl Directory {
    /// Reads the directory. Pagemaps are read whole, pages images are not touched.
    pub(crate) fn read(path: &Path) -> Result<Self, InterchangeError> {
        let inventory_path = path.join(INVENTORY);
        let inventory = match fs::read(&inventory_path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(InterchangeError::Missing(inventory_path)),
            read => read.map_err(io_at("read", &inventory_path))?,
        };
        Inventory::parse(&inventory).map_err(image_at(&inventory_path))?;
        let mut names = image_names(path)?;
        names.retain(|n| n.starts_with("pagemap-"));
        let mut taken = HashSet::new();
        let mut pairs = Vec::with_capacity(names.len());
        for pagemap in names {
            let map = read_pagemap(&path.join(&pagemap))?;
            let pages = format!("pages-{}.img", map.pages_id);
            if !taken.insert(map.pages_id) {
                return Err(InterchangeError::SharedPages(path.join(pages)));
            }
            pairs.push(Pair { pagemap, pages, map });
        }
        Ok(Self {
            has_parent: fs::symlink_metadata(path.join(PARENT)).is_ok(),
            path: path.to_owned(),
            inventory,
            pairs,
        })
    }

    pub(crate) fn inventory(&self) -> Result<Inventory<'_>, InterchangeError> {
        Inventory::parse(&self.inventory).map_err(image_at(&self.path.join(INVENTORY)))
    }

    /// Whether it can become a snapshot unchanged.
    pub(crate) fn is_plain(&self) -> Result<bool, InterchangeError> {
        let plain = |pair: &Pair| !pair.map.is_compressed() && !pair.map.needs_parent();
        Ok(!self.has_parent && !self.inventory()?.compressed && self.pairs.iter().all(plain))
    }

    /// Opens a pair's pages image.
    pub(crate) fn open(&self, pair: &Pair) -> Result<PageFile, InterchangeError> {
        PageFile::open(&self.path.join(&pair.pages), pair.map.clone())
    }
}

/// Sorted names of the `.img` files in a directory.
pub(super) fn image_names(path: &Path) -> Result<Vec<String>, InterchangeError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(io_at("read", path))? {
        let entry = entry.map_err(io_at("read", path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".img") && entry.file_type().map_err(io_at("read", path))?.is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

pub(super) fn read_pagemap(path: &Path) -> Result<StoredPagemap, InterchangeError> {
    let bytes = fs::read(path).map_err(io_at("read", path))?;
    StoredPagemap::parse(&bytes).map_err(image_at(path))
}
