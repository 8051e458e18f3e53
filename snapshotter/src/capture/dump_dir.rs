//! Reads a directory that CRIU dumped into.
#![expect(
    unsafe_code,
    reason = "maps the small images; memmap2 cannot promise that nobody changes the files"
)]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use rekindle_criu::images::{ImageError, PagemapImage, parse_vmas, parse_wiped_on_fork};

use super::split::{PageWindow, SplitImage, Unmapped, split};
use crate::codec::PAGE_BYTES;
use crate::manifest::is_file_name;

/// Why a directory cannot be used as a dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// A file could not be read.
    #[error("could not read {name}")]
    Read {
        /// The file, or the directory as `.`.
        name: String,
        /// The operating system's error.
        #[source]
        cause: io::Error,
    },
    /// A file is not the image that its name suggests.
    #[error("{name} cannot be used")]
    Image {
        /// The file.
        name: String,
        /// The parser's error.
        #[source]
        cause: ImageError,
    },
    /// An image is missing.
    #[error("{0} is missing: the dump did not finish")]
    Missing(String),
    /// The dump builds on an earlier one.
    #[error("the dump is incremental (it has a \"parent\"): dump without --prev-images-dir")]
    Incremental,
    /// The pages image does not have the pages that the pagemap lists: it is truncated, or CRIU compressed it.
    #[error("{name} has {found} bytes instead of {expected}: it is cut off, or was dumped with --compress")]
    PagesSize {
        /// The file.
        name: String,
        /// Actual size.
        found: u64,
        /// Expected size.
        expected: u64,
    },
    /// Two processes share one pages image.
    #[error("{0} has the pages of two processes")]
    SharedPages(String),
    /// Lazy memory outside every mapping.
    #[error("{name} contradicts the mappings of its process")]
    Unmapped {
        /// The file.
        name: String,
        /// The address.
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
    /// Not as in the file.
    Edited(Vec<u8>),
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Empty => &[],
            Self::Edited(bytes) => bytes,
        }
    }
}

/// A process with its own memory.
pub(super) struct DumpedProcess {
    pub(super) pid: u32,
    pages_id: u32,
    pages: fs::File,
    split: SplitImage,
    pub(super) pagemap: FileBytes,
    /// The pagemap image without lazy memory.
    pub(super) eager_pagemap: Vec<u8>,
}

/// A dump: small images are mapped, pages images are open.
pub(super) struct Dump {
    pub(super) path: PathBuf,
    /// By pid.
    pub(super) processes: Vec<DumpedProcess>,
    /// Files that are kept unchanged, by name.
    pub(super) images: BTreeMap<String, FileBytes>,
    /// Size of the pages images among `images`: shared memory.
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

    /// The pages that stay in the pages image, in order. Blocks.
    pub(super) fn eager_pages(&self) -> Result<Vec<u8>, DumpError> {
        // At most the file's size, which was checked against the pagemap. A dump of that size was in memory before.
        let mut pages = vec![0; self.eager_bytes() as usize];
        let mut rest = pages.as_mut_slice();
        for run in &self.split.eager {
            let (own, after) = rest.split_at_mut((run.end - run.start) as usize * PAGE_BYTES);
            let read = self.pages.read_exact_at(own, run.start * PAGE_BYTES as u64);
            read.map_err(reading(&self.pages_name()))?;
            rest = after;
        }
        Ok(pages)
    }

    /// Windows of lazy memory, by address.
    pub(super) fn windows(&self) -> &[PageWindow] {
        &self.split.lazy
    }

    /// The pages image. It has every page of every window.
    pub(super) fn file(&self) -> &fs::File {
        &self.pages
    }
}

/// Reads a dump except for its memory. CRIU's logs, sockets and statistics are left out. With `consume`, pages images
/// are opened for writing too.
pub(super) fn read_dump(dir: &Path, consume: bool) -> Result<Dump, DumpError> {
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
        let process = take_process(dir, consume, &mut images, pid, &mut pages_ids)?;
        processes.push(process);
    }
    processes.sort_by_key(|p| p.pid);
    let other_pages = images.iter().filter(|(name, _)| name.starts_with("pages-"));
    let other_pages_bytes = other_pages.map(|(_, bytes)| bytes.len() as u64).sum();
    Ok(Dump {
        path: dir.to_owned(),
        processes,
        images,
        other_pages_bytes,
    })
}

fn take_process(
    dir: &Path,
    consume: bool,
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
    let mut bytes = images.remove(&pagemap_name).ok_or_else(|| missing(&pagemap_name))?;
    let mm = images.get(&mm_name).ok_or_else(|| missing(&mm_name))?;
    let vmas = parse_vmas(mm).map_err(image(&mm_name))?;
    let mut pagemap = PagemapImage::parse(&bytes).map_err(image(&pagemap_name))?;
    if let Some(edited) = pagemap.encode_with_lazy(mm).map_err(image(&mm_name))? {
        pagemap = PagemapImage::parse(&edited).map_err(image(&pagemap_name))?;
        bytes = FileBytes::Edited(edited);
    }
    let mut split = split(&pagemap, &vmas).map_err(|cause| DumpError::Unmapped {
        name: pagemap_name,
        cause,
    })?;
    // Memory that is not in the snapshot reads as zeros. A piece lies within one mapping.
    let wiped = parse_wiped_on_fork(mm).map_err(image(&mm_name))?;
    split.lazy.retain(|cut| {
        let address = cut.first.address();
        !wiped.iter().any(|vma| (vma.start..vma.end).contains(&address))
    });
    let pages_name = pages_name(pagemap.pages_id);
    if !pages_ids.insert(pagemap.pages_id) {
        return Err(DumpError::SharedPages(pages_name));
    }
    if images.remove(&pages_name).is_none() {
        return Err(missing(&pages_name));
    }
    let path = dir.join(&pages_name);
    let pages = fs::File::options().read(true).write(consume).open(path);
    let pages = pages.map_err(reading(&pages_name))?;
    let len = pages.metadata().map_err(reading(&pages_name))?.len();
    let (found, expected) = (len, split.pages.saturating_mul(PAGE_BYTES as u64));
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

/// Names of the files that belong to the dump.
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
    // JUSTIFICATION: the images include shared memory and may be large. Reading them would hold that memory twice.
    // SAFETY: the bytes must not change while the mapping lives. CRIU has finished, the directory is private to the
    // worker, and `publish` requires that it be left alone. The mapping is read-only.
    let map = unsafe { Mmap::map(&file)? };
    Ok(FileBytes::Mapped(map))
}

fn pages_name(id: u32) -> String {
    format!("pages-{id}.img")
}

/// The pid in `pagemap-PID.img`. `None` for other files, such as `pagemap-shmem-ID.img`.
fn pagemap_pid(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("pagemap-")?.strip_suffix(".img")?;
    let pid = digits.parse().ok()?;
    // Only the canonical spelling is accepted.
    (digits == u32::to_string(&pid)).then_some(pid)
}

fn reading(name: &str) -> impl FnOnce(io::Error) -> DumpError {
    let name = name.to_owned();
    move |cause| DumpError::Read { name, cause }
}
