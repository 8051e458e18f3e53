//! Cuts a process's lazy memory into windows. They are read one by one, and `cut.rs` later cuts them into regions.
//! Pure.

use rekindle_criu::images::{PagemapImage, Vma};

use crate::codec::RegionSize;
use crate::pagemap::PageIndex;

/// Pages in a window: the largest region, so that every region size divides it.
const WINDOW: u64 = RegionSize::MAX.pages() as u64;

/// Consecutive pages of one mapping, within 4 MiB of the address space. They are also consecutive in the pages image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageWindow {
    pub(crate) first: PageIndex,
    /// Number of pages, 1 to 1024.
    pub(crate) pages: u16,
    /// Index of the first page in the pages image.
    pub(crate) file_page: u64,
}

/// A range of page indices in the pages image.
pub(crate) type FileRun = std::ops::Range<u64>;

/// How the pages of a pages image are divided.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitImage {
    /// Lazy memory, by address.
    pub(crate) lazy: Vec<PageWindow>,
    /// The pages that a restore needs in the pages image, in order.
    pub(crate) eager: Vec<FileRun>,
    /// Total pages in the image.
    pub(crate) pages: u64,
}

/// Lazy pages outside all mappings of the process.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("lazy memory at {:#x} is in no mapping of the process", .0.address())]
pub struct Unmapped(PageIndex);

/// Splits the pages of `pagemap`. Windows end where a mapping ends and at each multiple of 4 MiB.
pub(crate) fn split(pagemap: &PagemapImage, vmas: &[Vma]) -> Result<SplitImage, Unmapped> {
    let mut split = SplitImage::default();
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
            let window_end = PageIndex((page.0 / WINDOW + 1) * WINDOW);
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

/// Appends `first..end`, merging it into the last piece where possible. CRIU ends entries wherever its pipes were full,
/// but equal memory should be cut the same way.
fn push(lazy: &mut Vec<PageWindow>, first: PageIndex, end: PageIndex, file_page: u64, vma_start: Option<u64>) {
    // A window has 1024 pages, so the difference fits.
    let pages = u16::try_from(end.0 - first.0).unwrap_or(RegionSize::MAX.pages());
    if let Some(last) = lazy.last_mut() {
        let follows = last.first.0 + u64::from(last.pages) == first.0
            && last.file_page + u64::from(last.pages) == file_page
            && last.first.0 / WINDOW == first.0 / WINDOW
            && vma_start.is_some_and(|start| start <= last.first.address());
        if follows {
            last.pages += pages;
            return;
        }
    }
    lazy.push(PageWindow {
        first,
        pages,
        file_page,
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rekindle_criu::images::testing::{Run, pagemap_image};

    use super::*;

    /// Mappings with gaps, and runs of pages inside them. Some runs directly follow the one before.
    fn process() -> impl Strategy<Value = (Vec<Vma>, Vec<Run>)> {
        let vma = (
            0..4_u64,
            proptest::collection::vec((0..3_u64, 1..1500_u64, any::<bool>()), 0..6),
        );
        proptest::collection::vec(vma, 0..6).prop_map(|vmas| {
            let (mut page, mut found, mut runs) = (0x100, Vec::new(), Vec::new());
            for (gap, inside) in vmas {
                page += gap;
                let start = page;
                for (skip, pages, lazy) in inside {
                    page += skip;
                    runs.push(Run {
                        first: page,
                        pages,
                        lazy,
                    });
                    page += pages;
                }
                page += 1;
                let (start, end) = (start * 4096, page * 4096);
                found.push(Vma { start, end });
            }
            (found, runs)
        })
    }

    proptest! {
        #[test]
        fn every_lazy_page_is_in_one_window_and_every_other_stays((vmas, runs) in process()) {
            let pagemap = PagemapImage::parse(&pagemap_image(&runs)).unwrap();
            let split = split(&pagemap, &vmas).unwrap();
            // The naive way, page by page: (page, its index in the file).
            let pages = runs.iter().flat_map(|run| (run.first..run.first + run.pages).map(|page| (page, run.lazy)));
            let pages: Vec<_> = pages.zip(0..).collect();
            let lazy: Vec<_> =
                pages.iter().filter(|((_, lazy), _)| *lazy).map(|((page, _), at)| (*page, *at)).collect();
            let eager: Vec<_> = pages.iter().filter(|((_, lazy), _)| !lazy).map(|(_, at)| *at).collect();
            let cut = |cut: &PageWindow| {
                let PageWindow { first, pages, file_page } = *cut;
                (0..u64::from(pages)).map(move |n| (first.0 + n, file_page + n))
            };
            prop_assert_eq!(split.lazy.iter().flat_map(cut).collect::<Vec<_>>(), lazy);
            prop_assert_eq!(split.eager.iter().cloned().flatten().collect::<Vec<u64>>(), eager);
            prop_assert_eq!(split.pages, pages.len() as u64);
            for cut in &split.lazy {
                let end = cut.first.0 + u64::from(cut.pages);
                prop_assert_eq!(cut.first.0 / 1024, (end - 1) / 1024, "within 4 MiB");
                let inside = |v: &&Vma| v.start <= cut.first.address() && PageIndex(end).address() <= v.end;
                prop_assert!(vmas.iter().find(inside).is_some(), "within one mapping");
            }
        }
    }

    #[test]
    fn equal_memory_is_cut_alike_however_criu_cut_its_runs() {
        let vma = [Vma { start: 0, end: 1 << 30 }];
        let cuts = |runs: &[(u64, u64)]| {
            let runs: Vec<_> = runs
                .iter()
                .map(|(first, pages)| Run {
                    first: *first,
                    pages: *pages,
                    lazy: true,
                })
                .collect();
            split(&PagemapImage::parse(&pagemap_image(&runs)).unwrap(), &vma)
                .unwrap()
                .lazy
        };
        assert_eq!(cuts(&[(5, 1060)]), cuts(&[(5, 1), (6, 1015), (1021, 44)]));
    }

    #[test]
    fn lazy_memory_in_no_mapping_is_refused() {
        let runs = [Run {
            first: 4,
            pages: 2,
            lazy: true,
        }];
        let pagemap = PagemapImage::parse(&pagemap_image(&runs)).unwrap();
        assert_eq!(
            split(
                &pagemap,
                &[Vma {
                    start: 0,
                    end: 5 * 4096
                }]
            ),
            Err(Unmapped(PageIndex(5)))
        );
    }
}
