//! A pagemap with its parents: the directory that has each page's bytes. Blocking.
//!
//! `criu pre-dump` leaves a directory with the pages at that time. The dump after it (`--prev-images-dir`) has a link
//! `parent` to this directory, and marks the pages that have not changed since as `PE_PARENT`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rekindle_criu::images::{Inventory, PE_PARENT};

use super::directory::{INVENTORY, PARENT, read_pagemap};
use super::error::{InterchangeError, image_at, io_at};
use super::pages::PageFile;
use super::replace::resume;
use crate::codec::PAGE_BYTES;

/// More pre-dumps than anyone makes.
const PARENTS_MAX: usize = 256;

/// The directory and its parents, the newest first.
pub(super) fn directories(dir: &Path) -> Result<Vec<PathBuf>, InterchangeError> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut next = dir.to_owned();
    loop {
        let meta = fs::metadata(&next).map_err(io_at("open", &next))?;
        if !seen.insert((meta.dev(), meta.ino())) || found.len() > PARENTS_MAX {
            return Err(InterchangeError::Parents {
                path: dir.to_owned(),
                max: PARENTS_MAX,
            });
        }
        resume(&next)?;
        let parent = next.join(PARENT);
        found.push(next);
        if fs::symlink_metadata(&parent).is_err() {
            return Ok(found);
        }
        let inventory = parent.join(INVENTORY);
        // A failed pre-dump leaves no inventory, and the dump after it needs nothing from it.
        match fs::read(&inventory) {
            Ok(bytes) => drop(Inventory::parse(&bytes).map_err(image_at(&inventory))?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_at("read", &inventory)(e)),
        }
        next = parent;
    }
}

struct Level {
    dir: PathBuf,
    /// `None` if the process did not exist yet.
    file: Option<PageFile>,
}

/// A pagemap and the pagemaps of the same name in the parents.
pub(super) struct Chain {
    path: PathBuf,
    levels: Vec<Level>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LevelPages {
    level: usize,
    run: usize,
    /// Index of the first page in the run.
    from: u64,
    pub(super) pages: u64,
    /// Their flags in that directory.
    pub(super) flags: u32,
}

impl Chain {
    /// The chain of `first`, which is the pagemap `name` of the first directory.
    pub(super) fn open(dirs: &[PathBuf], name: &str, first: PageFile) -> Result<Self, InterchangeError> {
        let mut levels = vec![Level {
            dir: dirs[0].clone(),
            file: Some(first),
        }];
        for dir in &dirs[1..] {
            let path = dir.join(name);
            let file = if fs::symlink_metadata(&path).is_ok() {
                let map = read_pagemap(&path)?;
                let pages = dir.join(format!("pages-{}.img", map.pages_id));
                Some(PageFile::open(&pages, map)?)
            } else {
                None
            };
            levels.push(Level { dir: dir.clone(), file });
        }
        Ok(Self {
            path: dirs[0].join(name),
            levels,
        })
    }

    /// Locates the pages from `address` on: at least one, at most `pages`.
    pub(super) fn find(&self, address: u64, pages: u64) -> Result<LevelPages, InterchangeError> {
        let mut pages = pages;
        for (level, Level { dir, file }) in self.levels.iter().enumerate() {
            let run = file.as_ref().and_then(|f| Some((f, f.run_at(address)?)));
            let Some((file, at)) = run else {
                return Err(InterchangeError::NotInParent {
                    path: self.path.clone(),
                    parent: dir.clone(),
                    address,
                });
            };
            let run = &file.map.runs[at];
            pages = pages.min((run.end() - address) / PAGE_BYTES as u64);
            if run.is_present() {
                return Ok(LevelPages {
                    level,
                    run: at,
                    from: (address - run.address) / PAGE_BYTES as u64,
                    pages,
                    flags: run.flags,
                });
            }
            if run.flags & PE_PARENT == 0 {
                return Err(InterchangeError::Absent {
                    path: dir.join(self.path.file_name().unwrap_or_default()),
                    address,
                });
            }
        }
        let last = self.levels.last().map(|l| l.dir.as_path()).unwrap_or(&self.path);
        Err(InterchangeError::NoParent {
            path: self.path.clone(),
            link: last.join(PARENT),
        })
    }

    /// Fills `out` with the pages of `piece`, starting at its page `skip`.
    pub(super) fn read(&mut self, piece: &LevelPages, skip: u64, out: &mut [u8]) -> Result<(), InterchangeError> {
        match &mut self.levels[piece.level].file {
            Some(file) => file.read(piece.run, piece.from + skip, out),
            None => Ok(()),
        }
    }
}
