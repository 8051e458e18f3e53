//! Reads the directory that CRIU dumped into.
#![expect(
    unsafe_code,
    reason = "maps the pages images; memmap2 cannot promise that nobody changes the files"
)]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use memmap2::Mmap;

use super::pack::Piece;
use super::split::{Split, Unmapped, split};
use crate::codec::PAGE_BYTES;
use crate::images::{ImageError, PagemapImage, parse_vmas, parse_wiped_on_fork};
use crate::manifest::is_file_name;

/// Why a directory cannot be taken as a dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// A file could not be read.
    #[error("could not read {name}")]
    Read {
        /// The file, or the directory as `.`.
        name: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A file is not the image its name says.
    #[error("{name} cannot be used")]
    Image {
        /// The file.
        name: String,
        /// Why.
        #[source]
        cause: ImageError,
    },
    /// An image is not there.
    #[error("{0} is missing: the dump did not finish")]
    Missing(String),
    /// The dump builds on an earlier one.
    #[error("the dump is incremental (it has a \"parent\"): dump without --prev-images-dir")]
    Incremental,
    /// The pages image has not the pages the pagemap lists: cut off, or compressed by CRIU.
    #[error("{name} has {found} bytes instead of {expected}: it is cut off, or was dumped with --compress")]
    PagesSize {
        /// The file.
        name: String,
        /// Its size.
        found: u64,
        /// The size it should have.
        expected: u64,
    },
    /// Two processes have their pages in one file.
    #[error("{0} has the pages of two processes")]
    SharedPages(String),
    /// Lazy memory outside every mapping.
    #[error("{name} contradicts the mappings of its process")]
    Unmapped {
        /// The file.
        name: String,
        /// Where.
        #[source]
        cause: Unmapped,
    },
    /// A name that cannot be part of a snapshot.
    #[error("file name \"{0}\" is not one of CRIU's")]
    Name(String),
}

/// A file's bytes, mapped or read.
pub(super) enum FileBytes {
    Mapped(Mmap),
    /// An empty file cannot be mapped.
    Empty,
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Empty => &[],
        }
    }
}

/// A process with memory of its own.
pub(super) struct DumpedProcess {
    pub(super) pid: u32,
    pages_id: u32,
    pages: FileBytes,
    split: Split,
    /// The pagemap image, as it is.
    pub(super) pagemap: FileBytes,
    /// The pagemap image without lazy memory.
    pub(super) eager_pagemap: Vec<u8>,
}

/// A dump, its pages images mapped.
pub(super) struct Dump {
    /// By pid.
    pub(super) processes: Vec<DumpedProcess>,
    /// All files that are kept as they are, by name.
    pub(super) images: BTreeMap<String, FileBytes>,
    /// Bytes of pages images among `images`: shared memory.
    pub(super) other_pages_bytes: u64,
}

impl DumpedProcess {
    pub(super) fn pagemap_name(&self) -> String {
        format!("pagemap-{}.img", self.pid)
    }

    pub(super) fn pages_name(&self) -> String {
        pages_name(self.pages_id)
    }

    pub(super) fn eager_bytes(&self) -> u64 {
        self.split.eager.iter().map(|run| run.end - run.start).sum::<u64>() * PAGE_BYTES as u64
    }

    /// The pages that stay in the pages image, in order.
    pub(super) fn eager_pages(&self) -> Vec<u8> {
        self.split
            .eager
            .iter()
            .flat_map(|run| self.bytes(run.start, run.end))
            .copied()
            .collect()
    }

    fn bytes(&self, from_page: u64, to_page: u64) -> &[u8] {
        // The file's size was checked against the pagemap, so it has all these pages, and it is mapped: they fit in usize.
        let at = |page: u64| page as usize * PAGE_BYTES;
        &self.pages[at(from_page)..at(to_page)]
    }
}

impl Dump {
    /// All pieces of lazy memory, by process and address.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.processes.iter().enumerate().flat_map(|(process, dumped)| {
            let cuts = dumped.split.lazy.iter();
            cuts.map(move |cut| Piece { process, cut: *cut })
        })
    }

    /// The plain bytes of a piece.
    pub(super) fn piece_bytes(&self, piece: &Piece) -> &[u8] {
        let cut = &piece.cut;
        self.processes[piece.process].bytes(cut.file_page, cut.file_page + u64::from(cut.pages))
    }
}

/// Read a dump. Logs, sockets and statistics of CRIU's are left out.
pub(super) fn read_dump(dir: &Path) -> Result<Dump, DumpError> {
    let mut images = BTreeMap::new();
    for name in image_names(dir)? {
        let bytes = map_file(&dir.join(&name)).map_err(reading(&name))?;
        images.insert(name, bytes);
    }
    for needed in ["inventory.img", "pstree.img"] {
        if !images.contains_key(needed) {
            return Err(DumpError::Missing(needed.to_owned()));
        }
    }
    let pids: Vec<u32> = images.keys().filter_map(|name| pagemap_pid(name)).collect();
    let mut pages_ids = HashSet::new();
    let mut processes = Vec::with_capacity(pids.len());
    for pid in pids {
        let process = take_process(&mut images, pid, &mut pages_ids)?;
        processes.push(process);
    }
    processes.sort_by_key(|p| p.pid);
    let other_pages = images.iter().filter(|(name, _)| name.starts_with("pages-"));
    let other_pages_bytes = other_pages.map(|(_, bytes)| bytes.len() as u64).sum();
    Ok(Dump {
        processes,
        images,
        other_pages_bytes,
    })
}

fn take_process(
    images: &mut BTreeMap<String, FileBytes>,
    pid: u32,
    pages_ids: &mut HashSet<u32>,
) -> Result<DumpedProcess, DumpError> {
    let image = |name: &str| {
        let name = name.to_owned();
        |cause| DumpError::Image { name, cause }
    };
    let missing = |name: &str| DumpError::Missing(name.to_owned());
    let pagemap_name = format!("pagemap-{pid}.img");
    let mm_name = format!("mm-{pid}.img");
    let bytes = images.remove(&pagemap_name).ok_or_else(|| missing(&pagemap_name))?;
    let pagemap = PagemapImage::parse(&bytes).map_err(image(&pagemap_name))?;
    let mm = images.get(&mm_name).ok_or_else(|| missing(&mm_name))?;
    let vmas = parse_vmas(mm).map_err(image(&mm_name))?;
    let mut split = split(&pagemap, &vmas).map_err(|cause| DumpError::Unmapped {
        name: pagemap_name,
        cause,
    })?;
    // What is not in the snapshot reads as zeros. A piece is within one mapping.
    let wiped = parse_wiped_on_fork(mm).map_err(image(&mm_name))?;
    split.lazy.retain(|cut| {
        let address = cut.first.address();
        !wiped.iter().any(|vma| (vma.start..vma.end).contains(&address))
    });
    let pages_name = pages_name(pagemap.pages_id);
    if !pages_ids.insert(pagemap.pages_id) {
        return Err(DumpError::SharedPages(pages_name));
    }
    let pages = images.remove(&pages_name).ok_or_else(|| missing(&pages_name))?;
    let (found, expected) = (pages.len() as u64, split.pages.saturating_mul(PAGE_BYTES as u64));
    if found != expected {
        return Err(DumpError::PagesSize {
            name: pages_name,
            found,
            expected,
        });
    }
    Ok(DumpedProcess {
        pid,
        pages_id: pagemap.pages_id,
        pages,
        split,
        eager_pagemap: pagemap.encode_eager(),
        pagemap: bytes,
    })
}

/// Names of the files that are part of the dump.
fn image_names(dir: &Path) -> Result<Vec<String>, DumpError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(reading("."))? {
        let entry = entry.map_err(reading("."))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(reading(&name))?;
        if name == "parent" {
            return Err(DumpError::Incremental);
        }
        if !kind.is_file() || !name.ends_with(".img") {
            continue;
        }
        if !is_file_name(&name) {
            return Err(DumpError::Name(name));
        }
        names.push(name);
    }
    Ok(names)
}

fn map_file(path: &Path) -> io::Result<FileBytes> {
    let file = fs::File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(FileBytes::Empty);
    }
    // JUSTIFICATION: a dump is as large as the function's memory and lies on tmpfs; reading it would double that.
    // SAFETY: the bytes must not change while the mapping lives. CRIU has finished, the directory is private to the
    // worker, and `publish` requires that it be left alone; the mapping is read only.
    let map = unsafe { Mmap::map(&file)? };
    Ok(FileBytes::Mapped(map))
}

fn pages_name(id: u32) -> String {
    format!("pages-{id}.img")
}

/// The pid in `pagemap-PID.img`; `None` for other files, such as `pagemap-shmem-ID.img`.
fn pagemap_pid(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("pagemap-")?.strip_suffix(".img")?;
    let pid = digits.parse().ok()?;
    // One spelling only.
    (digits == u32::to_string(&pid)).then_some(pid)
}

fn reading(name: &str) -> impl FnOnce(io::Error) -> DumpError {
    let name = name.to_owned();
    move |cause| DumpError::Read { name, cause }
}
