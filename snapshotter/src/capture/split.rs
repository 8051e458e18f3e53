//! Cuts a process's lazy memory into pieces that become regions. Pure.

use crate::codec::REGION_PAGES;
use crate::images::{PagemapImage, Vma};
use crate::pagemap::PageIndex;

/// Consecutive pages of one mapping, within 64 KiB of the address space, consecutive in the pages image as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The first page.
    pub(crate) first: PageIndex,
    /// How many, 1 to [`REGION_PAGES`].
    pub(crate) pages: u16,
    /// Where the first lies in the pages image, pages.
    pub(crate) file_page: u64,
}

/// A run of pages in the pages image, pages.
pub(crate) type FileRun = std::ops::Range<u64>;

/// Where the pages of a pages image go.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    /// Lazy memory, by address.
    pub(crate) lazy: Vec<Cut>,
    /// What a restore needs in the pages image, in order.
    pub(crate) eager: Vec<FileRun>,
    /// Pages in the image together.
    pub(crate) pages: u64,
}

/// Lazy pages that are in no mapping of the process.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("lazy memory at {:#x} is in no mapping of the process", .0.address())]
pub struct Unmapped(PageIndex);

/// Split the pages of `pagemap`; pieces end where a mapping ends and at each multiple of 64 KiB.
pub(crate) fn split(pagemap: &PagemapImage, vmas: &[Vma]) -> Result<Split, Unmapped> {
    let mut split = Split::default();
    for entry in &pagemap.entries {
        let file_start = split.pages;
        split.pages += entry.pages;
        if !entry.lazy {
            split.eager.push(file_start..split.pages);
            continue;
        }
        let mut page = entry.first;
        let end = PageIndex(entry.first.0 + entry.pages);
        while page < end {
            let vma = vmas.partition_point(|v| v.start <= page.address());
            let vma = vma.checked_sub(1).map(|at| vmas[at]).filter(|v| page.address() < v.end);
            let vma_end = PageIndex::containing(vma.ok_or(Unmapped(page))?.end);
            let window = u64::from(REGION_PAGES);
            let window_end = PageIndex((page.0 / window + 1) * window);
            let stop = end.min(window_end).min(vma_end);
            push(
                &mut split.lazy,
                page,
                stop,
                file_start + (page.0 - entry.first.0),
                vma.map(|v| v.start),
            );
            page = stop;
        }
    }
    Ok(split)
}

/// Append `first..end`, as a part of the last piece where that may be continued: CRIU ends entries wherever its pipes
/// were full, and equal memory should be cut alike.
fn push(lazy: &mut Vec<Cut>, first: PageIndex, end: PageIndex, file_page: u64, vma_start: Option<u64>) {
    // A window has 16 pages, so the difference fits.
    let pages = u16::try_from(end.0 - first.0).unwrap_or(REGION_PAGES);
    let window = u64::from(REGION_PAGES);
    if let Some(last) = lazy.last_mut() {
        let follows = last.first.0 + u64::from(last.pages) == first.0
            && last.file_page + u64::from(last.pages) == file_page
            && last.first.0 / window == first.0 / window
            && vma_start.is_some_and(|start| start <= last.first.address());
        if follows {
            last.pages += pages;
            return;
        }
    }
    lazy.push(Cut {
        first,
        pages,
        file_page,
    });
}
