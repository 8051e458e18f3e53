//! The writable memory of processes, as it is in the images of a dump.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use rekindle_criu::images::{Backing, ImageError, PagemapImage, parse_mappings};

/// Access flag of a writable mapping.
const WRITE: u32 = 2;
const PAGE: u64 = 4096;

/// Why a snapshot's memory cannot be searched.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A file cannot be read.
    #[error("read {}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// An image is malformed.
    #[error("read {}", .0.display())]
    Image(PathBuf, #[source] ImageError),
}

/// Returns the ids of the processes whose memory is in a directory that CRIU dumped into, in order.
///
/// # Errors
/// Returns an error when the directory cannot be read.
pub(super) fn pids(dir: &Path) -> Result<Vec<u32>, SearchError> {
    let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|e| SearchError::File(dir.to_owned(), e))?;
    let pid_of = |name: &str| name.strip_prefix("pagemap-")?.strip_suffix(".img")?.parse().ok();
    let mut pids: Vec<u32> = entries.iter().filter_map(|e| pid_of(e.file_name().to_str()?)).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The memory of a process that it may write to.
pub(super) struct ImageMemory {
    pages: Mmap,
    /// Address, offset in `pages`, and length of each run.
    runs: Vec<(u64, usize, usize)>,
}

impl ImageMemory {
    /// Opens the images of a process. Blocks.
    ///
    /// # Errors
    /// Returns an error when an image cannot be read.
    pub(super) fn open(dir: &Path, pid: u32) -> Result<Self, SearchError> {
        let image = |name: String| {
            let path = dir.join(name);
            let bytes = fs::read(&path).map_err(|e| SearchError::File(path.clone(), e));
            bytes.map(|bytes| (path, bytes))
        };
        let (path, bytes) = image(format!("mm-{pid}.img"))?;
        let mappings = parse_mappings(&bytes).map_err(|e| SearchError::Image(path, e))?;
        let (path, bytes) = image(format!("pagemap-{pid}.img"))?;
        let pagemap = PagemapImage::parse(&bytes).map_err(|e| SearchError::Image(path, e))?;
        let path = dir.join(format!("pages-{}.img", pagemap.pages_id));
        let pages = map(&path).map_err(|e| SearchError::File(path, e))?;
        let writable = |address: u64| {
            let at = mappings.partition_point(|mapping| mapping.end <= address);
            let mapping = mappings.get(at).filter(|mapping| mapping.start <= address)?;
            let own = mapping.access & WRITE != 0 && !matches!(mapping.backing, Backing::Kernel);
            own.then_some(mapping.end)
        };
        let (mut runs, mut offset) = (Vec::<(u64, usize, usize)>::new(), 0);
        for entry in &pagemap.entries {
            let (mut address, end) = (entry.first.address(), entry.first.address() + entry.pages * PAGE);
            while address < end {
                // A run may span the border of two mappings.
                let upto = writable(address).map(|upto| upto.min(end));
                let behind = upto.unwrap_or(address + PAGE);
                let length = usize::try_from(behind - address).unwrap_or(usize::MAX);
                match runs.last_mut() {
                    Some((start, from, run))
                        if upto.is_some() && *start + *run as u64 == address && *from + *run == offset =>
                    {
                        *run += length;
                    }
                    _ if upto.is_some() => runs.push((address, offset, length)),
                    _ => {}
                }
                (address, offset) = (behind, offset + length);
            }
        }
        Ok(Self { pages, runs })
    }

    /// Returns its runs in order: the address of the first byte, and the bytes.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let bytes = |(start, from, length): &(u64, usize, usize)| {
            Some((*start, self.pages.get(*from..from.checked_add(*length)?)?))
        };
        self.runs.iter().filter_map(bytes)
    }
}

#[expect(unsafe_code, reason = "a mapped file may change; this one is the worker's own")]
fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: CRIU has written the file and has exited. Nobody else can open the file until it is published, after
    // this.
    unsafe { Mmap::map(&file) }
}
