//! Reads and hashes a dump's lazy memory, batch by batch. Pages that have been read may be given back to the file
//! system at once.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::{Condvar, Mutex};

use super::cut::{CutRegion, cut};
use super::dump_dir::{Dump, DumpError};
use super::split::PageWindow;
use crate::buffers::{Buffer, Buffers};
use crate::codec::{PAGE_BYTES, RegionSize};
use crate::digest::Digest;

/// Size at which a batch is closed: one window, or several small ones.
const BATCH_BYTES: usize = RegionSize::MAX.bytes();

/// Consecutive windows of one process.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// Index of the process in the dump.
    process: usize,
    windows: std::ops::Range<usize>,
}

/// A region that has been read.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashedRegion {
    /// Index of the process in the dump.
    pub(super) process: usize,
    /// Its pages, and their position in the batch's bytes.
    pub(super) region: CutRegion,
    /// Digest of its bytes. `None` if all are zero.
    pub(super) hash: Option<Digest>,
}

/// A batch in memory, at most twice [`BATCH_BYTES`].
#[derive(Debug)]
pub(super) struct BatchMemory {
    pub(super) bytes: Buffer,
    /// By address.
    pub(super) pieces: Vec<HashedRegion>,
}

/// All batches of a dump, by process and address.
pub(super) fn batches(dump: &Dump) -> Vec<Batch> {
    let mut batches = Vec::new();
    for (process, dumped) in dump.processes.iter().enumerate() {
        let (mut start, mut bytes) = (0, 0);
        for (at, window) in dumped.windows().iter().enumerate() {
            bytes += usize::from(window.pages) * PAGE_BYTES;
            if bytes >= BATCH_BYTES {
                let windows = start..at + 1;
                batches.push(Batch { process, windows });
                (start, bytes) = (at + 1, 0);
            }
        }
        let windows = start..dumped.windows().len();
        if !windows.is_empty() {
            batches.push(Batch { process, windows });
        }
    }
    batches
}

/// Reads a batch into one of `buffers`, cuts it into regions of `size` and hashes them. With `consume`, its pages are
/// removed from the dump. Blocks.
pub(super) fn read(
    dump: &Dump,
    batch: &Batch,
    buffers: &Buffers,
    size: RegionSize,
    consume: bool,
) -> Result<BatchMemory, DumpError> {
    let dumped = &dump.processes[batch.process];
    let windows = &dumped.windows()[batch.windows.clone()];
    let pages: usize = windows.iter().map(|w| usize::from(w.pages)).sum();
    let mut bytes = buffers.filled(pages * PAGE_BYTES);
    let mut pieces = Vec::new();
    let mut start = 0;
    for window in windows {
        let end = start + usize::from(window.pages) * PAGE_BYTES;
        let own = &mut bytes[start..end];
        let offset = window.file_page * PAGE_BYTES as u64;
        let read = dumped.file().read_exact_at(own, offset);
        read.map_err(|cause| DumpError::Read {
            name: dumped.pages_name(),
            cause,
        })?;
        if consume {
            give_back(dumped.file(), window);
        }
        pieces.extend(cut(window, own, size).into_iter().map(|region| HashedRegion {
            process: batch.process,
            hash: (!region.zero).then(|| Digest::of(region.of(own))),
            region: CutRegion {
                at: region.at + start,
                ..region
            },
        }));
        start = end;
    }
    Ok(BatchMemory { bytes, pieces })
}

/// Punches the copied pages out of the file. Otherwise they would be in memory twice until the directory is removed, as
/// they are on file systems that cannot punch holes.
fn give_back(file: &File, window: &PageWindow) {
    let page = PAGE_BYTES as i64;
    // The file has these pages, so their offsets are valid file offsets.
    let (offset, len) = (window.file_page as i64 * page, i64::from(window.pages) * page);
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    if let Err(error) = fallocate(file, flags, offset, len) {
        tracing::debug!(%error, "pages that were captured stay until their directory is removed");
    }
}

/// Limits how many threads compute at once. They wait here rather than in the runtime.
#[derive(Debug, Clone)]
pub(super) struct ComputePermits {
    free: Arc<(Mutex<usize>, Condvar)>,
}

impl ComputePermits {
    pub(super) fn new(count: usize) -> Self {
        let free = Mutex::new(count.max(1));
        Self {
            free: Arc::new((free, Condvar::new())),
        }
    }

    /// Runs `work` once fewer than that many threads are running. Blocks.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _core = ComputePermit::take(&self.free);
        work()
    }
}

/// A permit of `ComputePermits`, returned on drop.
struct ComputePermit<'a>(&'a (Mutex<usize>, Condvar));

impl<'a> ComputePermit<'a> {
    fn take(free: &'a (Mutex<usize>, Condvar)) -> Self {
        let mut count = free.0.lock();
        free.1.wait_while(&mut count, |count| *count == 0);
        *count -= 1;
        Self(free)
    }
}

impl Drop for ComputePermit<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() += 1;
        self.0.1.notify_one();
    }
}
