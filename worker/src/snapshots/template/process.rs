//! One process's part of a template: its file, its pages that are present, and their eviction.
#![expect(
    unsafe_code,
    reason = "pages are shared between threads by a bit each, which the borrow checker cannot follow"
)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::Mutex;
use rekindle_criu::images::TemplateLayout;
use rekindle_pager::{PAGE, PageLookup, unpinned};
use rekindle_snapshotter::{PageIndex, PageMap, Region};

use super::page_bits::PageBits;
use super::{ProcessMemory, TemplateError};
use crate::snapshots::level::Charge;
use crate::snapshots::memory_fs::MemoryFs;

/// Size of a template's sparse file. A mapping may grow by `mremap`, so the file must cover everything it could grow
/// to.
const FILE_BYTES: u64 = 1 << 50;
/// How long pagers may take to stop looking at pages that are being evicted. They look for microseconds.
const UNPINNED_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::snapshots) enum Pages {
    /// Pages that restores want before their first instruction.
    WorkingSet,
    Rest,
}

pub(super) struct ProcessTemplate {
    pub(super) pid: i32,
    pub(super) map: Arc<PageMap>,
    pub(super) layout: TemplateLayout,
    /// Offset in `memory` where each region's plain bytes start.
    starts: Vec<usize>,
    /// Pages that are present, by region. Regions that hold nothing are not counted.
    ready: PageBits,
    /// Pages of the working set.
    ahead: PageBits,
    /// Pages that are never evicted: the kernel touches them before a pager could serve them.
    kept: PageBits,
    /// Pages of folded areas that were not written.
    unwritten: Vec<PageIndex>,
    memory: MmapRaw,
    file: File,
    pub(super) read_only: OwnedFd,
    /// Held by whoever fills or evicts pages. The value is the region where the next eviction begins, which spares
    /// recently filled pages for a round.
    changing: Mutex<usize>,
}

impl ProcessTemplate {
    pub(super) fn new(snapshot: &str, process: ProcessMemory, fs: &MemoryFs) -> Result<Self, TemplateError> {
        let ProcessMemory {
            pid,
            map,
            layout,
            folded,
            unwritten,
        } = process;
        // Regions end where a mapping ends, so each region is inside one mapping or outside all.
        let mut length = (layout.pages() * PAGE) as usize;
        let starts = map.regions().iter().map(|region| match layout.mapping(region.first) {
            Some(area) if region.end() <= area.end() => Ok(((area.at + region.first.0 - area.first.0) * PAGE) as usize),
            Some(_) => Err(TemplateError::Straddles {
                snapshot: snapshot.to_owned(),
                region: region.to_string(),
            }),
            None => {
                let start = length;
                length += if region.payload.is_some() {
                    region.plain_len()
                } else {
                    0
                };
                Ok(start)
            }
        });
        let starts = starts.collect::<Result<_, _>>()?;
        let file = fs.create(&format!("{snapshot}-{pid}"), FILE_BYTES)?;
        let mapped = MmapOptions::new()
            .len(length.max(PAGE as usize))
            .map_raw(&file.writable);
        let memory = mapped.map_err(|source| TemplateError::Map {
            snapshot: snapshot.to_owned(),
            bytes: length,
            source,
        })?;
        let mut rest = folded.as_slice();
        for area in layout.folded.iter().map(|f| &f.area) {
            let Some((bytes, behind)) = rest.split_at_checked((area.pages * PAGE) as usize) else {
                return Err(TemplateError::FoldedShort(snapshot.to_owned()));
            };
            // Written to the file, as a page fault for each page of the mapping takes longer.
            let written = file.writable.write_all_at(bytes, area.at * PAGE);
            written.map_err(|source| TemplateError::Write {
                snapshot: snapshot.to_owned(),
                source,
            })?;
            rest = behind;
        }
        let bits = || PageBits::none(map.regions().iter().map(|r| r.payload.map_or(0, |_| r.pages)));
        let (ready, ahead, kept) = (bits(), bits(), bits());
        Ok(Self {
            pid,
            map,
            layout,
            starts,
            ready,
            ahead,
            kept,
            unwritten,
            memory,
            file: file.writable,
            read_only: file.read_only,
            changing: Mutex::new(0),
        })
    }

    /// Returns the index of the region that contains `page`.
    pub(super) fn index(&self, page: u64) -> Option<usize> {
        let regions = self.map.regions();
        let index = regions.partition_point(|r| r.first.0 <= page).checked_sub(1)?;
        regions[index].contains(PageIndex(page)).then_some(index)
    }

    /// Returns the region of `page`, and the index of the page in it.
    fn place(&self, page: u64) -> Option<(usize, usize)> {
        let index = self.index(page)?;
        Some((index, (page - self.map.regions()[index].first.0) as usize))
    }

    /// Returns what is held of a page and of those that follow, valid as long as the caller is pinned.
    pub(super) fn held(&self, page: u64) -> PageLookup<'_> {
        let Some((index, offset)) = self.place(page) else {
            return self.held_folded(page);
        };
        let region = &self.map.regions()[index];
        if region.payload.is_none() {
            return PageLookup::Zero;
        }
        let run = self.ready.run(index, offset);
        if run == 0 {
            return PageLookup::Absent;
        }
        let start = self.starts[index] + offset * PAGE as usize;
        // SAFETY: these pages lie inside the mapping, which lives as long as `self`. Their bits are set, so they are
        // written. They are neither evicted nor written again before the caller is unpinned.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), run * PAGE as usize) };
        if self.layout.mapping(region.first).is_some() {
            PageLookup::Mapped(bytes)
        } else {
            PageLookup::Bytes(bytes)
        }
    }

    /// Returns the pages of folded areas that were not written. Each is zero until [`Self::put_unwritten`] was called
    /// for it.
    pub(super) fn unwritten(&self) -> &[PageIndex] {
        &self.unwritten
    }

    /// Puts in the bytes of one of these pages. Nothing may have been restored from this template, nor be restored
    /// meanwhile.
    pub(super) fn put_unwritten(&self, page: PageIndex, bytes: &[u8]) {
        let Some(folded) = self.layout.folded(page) else { return };
        let at = folded.area.at + page.0 - folded.area.first.0;
        let length = bytes.len().min(PAGE as usize);
        // SAFETY: the page lies inside the mapping, as all of the layout does. By this function's contract nobody reads
        // it yet, and its one caller holds a lock.
        unsafe {
            let to = self.memory.as_mut_ptr().add((at * PAGE) as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length);
        }
    }

    fn held_folded(&self, page: u64) -> PageLookup<'_> {
        let Some(folded) = self.layout.folded(PageIndex(page)) else {
            return PageLookup::Zero;
        };
        let (start, end) = (
            folded.area.at + page - folded.area.first.0,
            folded.area.at + folded.area.pages,
        );
        // SAFETY: these pages lie inside the mapping, which lives as long as `self`. They were written when it was
        // created, and they stay.
        let bytes = unsafe {
            let from = self.memory.as_ptr().add((start * PAGE) as usize);
            std::slice::from_raw_parts(from, ((end - start) * PAGE) as usize)
        };
        PageLookup::Mapped(bytes)
    }

    pub(super) fn is_full(&self, index: usize) -> bool {
        self.ready.all(index)
    }

    /// Writes whole pages into region `index` from its page `first` on, except those that are present already.
    ///
    /// # Errors
    /// Returns the kernel's error. The pages that it did not write stay absent.
    pub(super) fn fill(&self, index: usize, first: usize, bytes: &[u8], charge: &Charge) -> io::Result<()> {
        let region = &self.map.regions()[index];
        if region.payload.is_none() {
            return Ok(());
        }
        let _alone = self.changing.lock();
        let page_bytes = PAGE as usize;
        let last = usize::from(region.pages).min(first + bytes.len() / page_bytes);
        let mut page = first;
        while page < last {
            let present = self.ready.run(index, page);
            if present > 0 {
                page += present;
                continue;
            }
            let end = (page..last)
                .find(|page| self.ready.is_set(index, *page))
                .unwrap_or(last);
            let missing = &bytes[(page - first) * page_bytes..(end - first) * page_bytes];
            // By a call, as the mapping would take a fault for each page.
            self.file
                .write_all_at(missing, (self.starts[index] + page * page_bytes) as u64)?;
            for page in page..end {
                self.ready.set(index, page);
            }
            charge.add(missing.len() as u64);
            page = end;
        }
        Ok(())
    }

    /// Like `fill`, for the page with this number.
    pub(super) fn fill_page(&self, page: u64, bytes: &[u8], charge: &Charge) -> io::Result<()> {
        match self.place(page).filter(|_| bytes.len() == PAGE as usize) {
            Some((index, offset)) => self.fill(index, offset, bytes, charge),
            None => Ok(()),
        }
    }

    /// Makes these pages the working set, and no others.
    pub(super) fn set_ahead(&self, pages: impl Iterator<Item = u64>) {
        self.ahead.set_only(pages.filter_map(|page| self.place(page)));
    }

    /// Exempts the page from eviction.
    pub(super) fn keep(&self, page: u64) {
        if let Some((index, offset)) = self.place(page) {
            self.kept.set(index, offset);
        }
    }

    /// Returns how many of these pages are present and could be evicted.
    pub(super) fn there(&self, pages: Pages) -> u64 {
        self.ready.count(|at| {
            let ahead = self.ahead.word(at);
            let of_kind = if pages == Pages::WorkingSet { ahead } else { !ahead };
            of_kind & !self.kept.word(at)
        })
    }

    /// Evicts at most `most` of these pages, in regions that `may_go`, from all clones at once. Pages that a clone has
    /// written stay its own. Returns the number of pages. Blocks until no pager looks at them; beyond a time limit it
    /// evicts nothing.
    pub(super) fn take_back(&self, pages: Pages, most: u64, may_go: &dyn Fn(&Region) -> bool, charge: &Charge) -> u64 {
        let mut hand = self.changing.lock();
        let taken = self.withhold(pages, most, may_go, &mut hand);
        if taken.is_empty() {
            return 0;
        }
        if !unpinned(UNPINNED_LIMIT) {
            tracing::warn!(
                pid = self.pid,
                "a pager looks at the template for too long: nothing is taken back"
            );
            for run in &taken {
                self.offer(run);
            }
            return 0;
        }
        let mut punched = 0;
        for run in &taken {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let (start, length) = (self.start(run) as i64, (run.pages as u64 * PAGE).cast_signed());
            match fallocate(&self.file, flags, start, length) {
                Ok(()) => punched += run.pages as u64,
                Err(error) => {
                    // The bytes are unchanged.
                    tracing::warn!(pid = self.pid, %error, "pages of a template cannot be taken back");
                    self.offer(run);
                }
            }
        }
        charge.remove(punched * PAGE);
        punched
    }

    fn start(&self, run: &RegionPages) -> usize {
        self.starts[run.region] + run.first * PAGE as usize
    }

    /// Marks at most `most` of these pages as absent, beginning with region `hand`.
    fn withhold(
        &self,
        pages: Pages,
        most: u64,
        may_go: &dyn Fn(&Region) -> bool,
        hand: &mut usize,
    ) -> Vec<RegionPages> {
        let (mut taken, mut count) = (Vec::<RegionPages>::new(), 0);
        let regions = self.map.regions();
        for region in (*hand..regions.len()).chain(0..*hand) {
            if !may_go(&regions[region]) {
                continue;
            }
            for page in 0..usize::from(regions[region].pages) {
                if count >= most {
                    *hand = region;
                    return taken;
                }
                let wanted = self.ahead.is_set(region, page) == (pages == Pages::WorkingSet);
                if !wanted || self.kept.is_set(region, page) || !self.ready.clear(region, page) {
                    continue;
                }
                count += 1;
                match taken.last_mut() {
                    Some(run) if run.region == region && run.first + run.pages == page => run.pages += 1,
                    _ => taken.push(RegionPages {
                        region,
                        first: page,
                        pages: 1,
                    }),
                }
            }
        }
        taken
    }

    /// Marks the pages as present again.
    fn offer(&self, run: &RegionPages) {
        for page in run.first..run.first + run.pages {
            self.ready.set(run.region, page);
        }
    }
}

struct RegionPages {
    region: usize,
    first: usize,
    pages: usize,
}

#[cfg(test)]
mod tests {
    use rekindle_snapshotter::codec::Encoding;
    use rekindle_snapshotter::pagemap::{ChunkRef, Payload, Region};
    use rekindle_snapshotter::{Digest, RegionSize};

    use super::*;
    use crate::snapshots::level::ByteBudget;

    /// Creates a process with two regions of 16 pages, all present.
    fn filled(charge: &Charge) -> ProcessTemplate {
        let hash = Digest::of(b"");
        let payload = Payload {
            hash,
            encoding: Encoding::Raw,
            chunk: ChunkRef { id: hash, len: 1 << 20 },
            offset: 0,
            len: 16 * PAGE as u32,
        };
        let region = |first: u64| Region {
            first: PageIndex(first),
            pages: 16,
            payload: Some(payload),
            base: None,
        };
        let map = PageMap::new(RegionSize::DEFAULT, vec![region(16), region(64)]).unwrap();
        let memory = ProcessMemory {
            pid: 7,
            map: Arc::new(map),
            layout: TemplateLayout::default(),
            folded: Vec::new(),
            unwritten: Vec::new(),
        };
        let template = ProcessTemplate::new("s-1", memory, &MemoryFs::new().unwrap()).unwrap();
        for index in 0..2 {
            template.fill(index, 0, &[1; 16 * PAGE as usize], charge).unwrap();
        }
        template
    }

    #[test]
    fn what_is_of_the_working_set_no_more_is_taken_back_before_what_is() {
        let charge = Charge::new(&ByteBudget::new(1 << 30), 0);
        let template = filled(&charge);
        let there = || [Pages::WorkingSet, Pages::Rest].map(|pages| template.there(pages));
        template.set_ahead([16, 17, 64, 1000].into_iter());
        assert_eq!(there(), [3, 29]);
        template.set_ahead((65..75).chain([17]));
        assert_eq!(there(), [11, 21], "as it was recorded anew");
        let second = |region: &Region| region.first == PageIndex(64);
        assert_eq!(template.take_back(Pages::Rest, 32, &second, &charge), 6);
        assert!(
            matches!(template.held(16), PageLookup::Bytes(_)),
            "its region was to stay"
        );
        assert_eq!(template.take_back(Pages::Rest, 32, &|_| true, &charge), 15);
        assert!(matches!(template.held(16), PageLookup::Absent), "of the old set alone");
        assert!(matches!(template.held(17), PageLookup::Bytes(_)), "of both");
        assert!(matches!(template.held(70), PageLookup::Bytes(_)), "of the new one");
    }
}
