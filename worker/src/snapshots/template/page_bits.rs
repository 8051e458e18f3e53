//! Facts about a template's pages, one bit for each page: whether a page is present, or belongs to the working set. A
//! set bit guarantees that the writes before it are visible, no matter who made them.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = u64::BITS as usize;

#[derive(Debug)]
pub(in crate::snapshots) struct PageBits {
    regions: Vec<Bits>,
    words: Vec<AtomicU64>,
}

#[derive(Debug, Clone, Copy)]
struct Bits {
    /// Index of its first word.
    at: u32,
    pages: u16,
}

impl PageBits {
    /// Creates the bits of regions with these numbers of pages, with no bit set.
    pub(super) fn none(pages: impl Iterator<Item = u16>) -> Self {
        let mut at = 0;
        let regions: Vec<Bits> = pages
            .map(|pages| {
                let bits = Bits { at, pages };
                // 2^32 words would be more than 16 TiB of memory.
                at += usize::from(pages).div_ceil(WORD) as u32;
                bits
            })
            .collect();
        let words = (0..at).map(|_| AtomicU64::new(0)).collect();
        Self { regions, words }
    }

    fn words(&self, region: usize) -> (&[AtomicU64], usize) {
        let Bits { at, pages } = self.regions[region];
        let (at, pages) = (at as usize, usize::from(pages));
        (&self.words[at..at + pages.div_ceil(WORD)], pages)
    }

    /// Returns whether all pages of `region` are present.
    pub(super) fn all(&self, region: usize) -> bool {
        let (words, mut pages) = self.words(region);
        words.iter().all(|word| {
            let own = pages.min(WORD);
            pages -= own;
            word.load(Ordering::Acquire).trailing_ones() as usize >= own
        })
    }

    /// Returns how many consecutive pages of `region` are present, from its page `page` on.
    pub(super) fn run(&self, region: usize, page: usize) -> usize {
        let (words, pages) = self.words(region);
        let mut end = page;
        while end < pages {
            let bit = end % WORD;
            let run = (words[end / WORD].load(Ordering::Acquire) >> bit).trailing_ones() as usize;
            end += run;
            // Bits shifted in from the left are not set, so a run ends at its word's end at the latest.
            if run < WORD - bit {
                break;
            }
        }
        end - page
    }

    /// Returns the bit of page `page` of `region`.
    pub(super) fn is_set(&self, region: usize, page: usize) -> bool {
        let (words, pages) = self.words(region);
        page < pages && words[page / WORD].load(Ordering::Acquire) & (1 << (page % WORD)) != 0
    }

    /// Sets the bit of page `page` of `region`, if the region has that page. Returns whether this changed it.
    pub(super) fn set(&self, region: usize, page: usize) -> bool {
        let (words, pages) = self.words(region);
        let bit = 1 << (page % WORD);
        page < pages && words[page / WORD].fetch_or(bit, Ordering::Release) & bit == 0
    }

    /// Clears the bit. Returns whether it was set.
    pub(super) fn clear(&self, region: usize, page: usize) -> bool {
        let (words, pages) = self.words(region);
        let bit = 1 << (page % WORD);
        page < pages && words[page / WORD].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Sets the bits of these pages, given as region and page, and clears all others. It works word by word, so a
    /// concurrent reader sees a mix of both.
    pub(super) fn set_only(&self, pages: impl Iterator<Item = (usize, usize)>) {
        let mut wanted = vec![0_u64; self.words.len()];
        for (region, page) in pages {
            let bits = self.regions[region];
            if page < usize::from(bits.pages) {
                wanted[bits.at as usize + page / WORD] |= 1 << (page % WORD);
            }
        }
        for (word, wanted) in self.words.iter().zip(wanted) {
            word.store(wanted, Ordering::Release);
        }
    }

    /// Returns how many bits are set, with each word masked by the mask of its index.
    pub(super) fn count(&self, mask: impl Fn(usize) -> u64) -> u64 {
        let words = self.words.iter().enumerate();
        let ones = words.map(|(at, word)| u64::from((word.load(Ordering::Relaxed) & mask(at)).count_ones()));
        ones.sum()
    }

    /// Returns the word with index `at`.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_a_plain_table_for_every_size_of_region() {
        let sizes = [16, 0, 1, 64, 65, 1024, 3];
        let ready = PageBits::none(sizes.into_iter());
        let mut table: Vec<Vec<bool>> = sizes.iter().map(|pages| vec![false; usize::from(*pages)]).collect();
        let mut seed = 1_u64;
        for _ in 0..4000 {
            // Knuth's generator; the upper bits are the good ones.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let region = (seed >> 33) as usize % sizes.len();
            if sizes[region] == 0 {
                continue;
            }
            let page = (seed >> 40) as usize % usize::from(sizes[region]);
            if seed >> 60 == 0 {
                assert_eq!(ready.clear(region, page), table[region][page]);
                table[region][page] = false;
            } else {
                assert_eq!(ready.set(region, page), !table[region][page]);
                table[region][page] = true;
            }
            assert_eq!(ready.is_set(region, page), table[region][page]);
            let there = table.iter().flatten().filter(|there| **there).count() as u64;
            assert_eq!(ready.count(|_| u64::MAX), there);
            for (region, pages) in table.iter().enumerate() {
                assert_eq!(ready.all(region), pages.iter().all(|there| *there));
            }
            let run = table[region][page..].iter().take_while(|there| **there).count();
            assert_eq!(ready.run(region, page), run);
            let before = page.saturating_sub(70);
            let run = table[region][before..].iter().take_while(|there| **there).count();
            assert_eq!(ready.run(region, before), run);
        }
        assert!(ready.all(1), "a region that holds nothing lacks nothing");
        assert!(!ready.set(1, 0) && !ready.is_set(1, 0));
    }
}
