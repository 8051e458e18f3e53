//! Cuts a window of memory into regions: at multiples of the region size, and around runs of zero pages. Pure.
//!
//! ```text
//! window   |  region size  |  region size  |  region size  |
//! pages    xxxxxxxxxxxxxxxx0000000000000000xxx0xx000....000xx
//! regions  [      LZ4     ][     zero     ][ LZ4 ][ zero  ][]
//! ```
//!
//! How the memory of one region size is cut does not depend on its surroundings, except that adjacent zeros become one
//! region.

use super::split::PageWindow;
use crate::codec::{PAGE_BYTES, RegionSize, is_zero};
use crate::pagemap::PageIndex;

/// Length of a run of zero pages that is cut out of a region: 64 KiB. Such a run costs no payload and no memory on any
/// host. Shorter runs cost LZ4 less than two more entries of the page map (112 bytes). Regions of 64 KiB are cut as
/// before.
const ZERO_RUN: usize = 16;

/// A future region, located in its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CutRegion {
    pub(super) first: PageIndex,
    pub(super) pages: u16,
    /// Byte offset in the window.
    pub(super) at: usize,
    /// Whether all its bytes are zero.
    pub(super) zero: bool,
}

impl CutRegion {
    /// The region's bytes within `window`.
    pub(super) fn of<'a>(&self, window: &'a [u8]) -> &'a [u8] {
        &window[self.at..self.at + usize::from(self.pages) * PAGE_BYTES]
    }
}

/// The regions of `window`, whose contents are `bytes`, by address.
pub(super) fn cut(window: &PageWindow, bytes: &[u8], size: RegionSize) -> Vec<CutRegion> {
    let zero: Vec<bool> = bytes.chunks_exact(PAGE_BYTES).map(is_zero).collect();
    let size = u64::from(size.pages());
    let mut regions = Vec::new();
    let mut from = 0;
    while from < zero.len() {
        let page = window.first.0 + from as u64;
        // Less than the region size, so it fits.
        let left = (size - page % size) as usize;
        let to = zero.len().min(from + left);
        cut_around_zeros(window, &zero[..to], from, &mut regions);
        from = to;
    }
    regions
}

/// Cuts the pages from `from` to the end of `zero`, which are within one region size.
fn cut_around_zeros(window: &PageWindow, zero: &[bool], from: usize, regions: &mut Vec<CutRegion>) {
    let mut start = from;
    let mut at = from;
    while at < zero.len() {
        let run = zero[at..].iter().take_while(|zero| **zero).count();
        let whole = at == from && at + run == zero.len();
        if run >= ZERO_RUN || whole {
            push(window, start..at, false, regions);
            push(window, at..at + run, true, regions);
            start = at + run;
        }
        at += run.max(1);
    }
    push(window, start..zero.len(), false, regions);
}

fn push(window: &PageWindow, pages: std::ops::Range<usize>, zero: bool, regions: &mut Vec<CutRegion>) {
    if pages.is_empty() {
        return;
    }
    // A window has at most 1024 pages.
    let count = u16::try_from(pages.len()).unwrap_or(RegionSize::MAX.pages());
    if let Some(last) = regions.last_mut().filter(|last| zero && last.zero) {
        last.pages += count;
        return;
    }
    regions.push(CutRegion {
        first: PageIndex(window.first.0 + pages.start as u64),
        pages: count,
        at: pages.start * PAGE_BYTES,
        zero,
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A window of zero and nonzero runs of pages, somewhere in its 4 MiB.
    fn window() -> impl Strategy<Value = (PageWindow, Vec<u8>)> {
        let runs = proptest::collection::vec((1..60_usize, any::<bool>()), 1..30);
        (0..1024_u64, runs).prop_map(|(skip, runs)| {
            let mut bytes = Vec::new();
            for (pages, zero) in runs {
                for _ in 0..pages {
                    let end = bytes.len() + PAGE_BYTES;
                    if end <= (1024 - skip as usize) * PAGE_BYTES {
                        bytes.resize(end, 0);
                        bytes[end - 1] = u8::from(!zero);
                    }
                }
            }
            let pages = u16::try_from(bytes.len() / PAGE_BYTES).unwrap();
            let first = PageIndex((7 << 20) + skip);
            let file_page = 3;
            (
                PageWindow {
                    first,
                    pages,
                    file_page,
                },
                bytes,
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_page_is_in_one_region_and_long_runs_of_zeros_in_none_with_a_payload(
            (window, bytes) in window(), size in prop::sample::select(vec![1_u16, 16, 64, 256, 1024]),
        ) {
            let size = RegionSize::from_pages(size).unwrap();
            let regions = cut(&window, &bytes, size);
            let mut next = window.first.0;
            for region in &regions {
                prop_assert_eq!(region.first.0, next);
                prop_assert_eq!(region.at, (next - window.first.0) as usize * PAGE_BYTES);
                next += u64::from(region.pages);
                let pages: Vec<bool> = region.of(&bytes).chunks(PAGE_BYTES).map(is_zero).collect();
                prop_assert_eq!(region.zero, pages.iter().all(|zero| *zero));
                if !region.zero {
                    let limit = u64::from(size.pages());
                    prop_assert_eq!(region.first.0 / limit, (next - 1) / limit, "within one region size");
                    let longest = pages.split(|zero| !zero).map(<[bool]>::len).max();
                    prop_assert!(longest.unwrap_or(0) < ZERO_RUN);
                }
            }
            prop_assert_eq!(next, window.first.0 + u64::from(window.pages));
            prop_assert!(!regions.windows(2).any(|pair| pair[0].zero && pair[1].zero), "zeros next to zeros are one");
        }

        #[test]
        fn what_lies_around_a_region_size_has_no_say((window, mut bytes) in window(), flip in 0..64_usize) {
            let size = RegionSize::from_pages(64).unwrap();
            let held = |regions: Vec<CutRegion>, slot: u64| {
                let held = regions.into_iter().filter(move |r| !r.zero && r.first.0 / 64 == slot);
                held.map(|r| (r.first, r.pages)).collect::<Vec<_>>()
            };
            let slot = window.first.0 / 64;
            let before = held(cut(&window, &bytes, size), slot);
            let end = ((slot + 1) * 64 - window.first.0) as usize * PAGE_BYTES;
            if let Some(byte) = bytes.get_mut(end + flip * PAGE_BYTES) {
                *byte ^= 1;
            }
            prop_assert_eq!(held(cut(&window, &bytes, size), slot), before);
        }
    }
}
