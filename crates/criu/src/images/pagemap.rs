//! `pagemap-ID.img`: which pages of an address space are in `pages-N.img`, in the order of that file.

use std::ops::Range;

use prost::Message as _;

use super::mm::MmImage;
use super::{ImageError, first_message, framing, wire};
use crate::{PAGE_BYTES, PageIndex};

pub(super) const PAGEMAP_MAGIC: u32 = 0x5608_4025;
pub(super) const KIND: &str = "pagemap";

/// The pages are in the parent image.
pub const PE_PARENT: u32 = 1 << 0;
/// The pages may be restored lazily.
pub const PE_LAZY: u32 = 1 << 1;
/// The pages are in the pages image.
pub const PE_PRESENT: u32 = 1 << 2;

/// End of the address space: 57 bits.
const ADDRESS_END: u64 = 1 << 57;

#[derive(Clone, PartialEq, prost::Message)]
struct HeadMessage {
    #[prost(uint32, required, tag = "1")]
    pages_id: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EntryMessage {
    #[prost(uint64, required, tag = "1")]
    vaddr: u64,
    /// Zero if the number is in `nr_pages`, as CRIU writes it from 4.0 on.
    #[prost(uint32, required, tag = "2")]
    compat_nr_pages: u32,
    #[prost(bool, optional, tag = "3")]
    in_parent: Option<bool>,
    #[prost(uint32, optional, tag = "4")]
    flags: Option<u32>,
    #[prost(uint64, optional, tag = "5")]
    nr_pages: Option<u64>,
}

/// The message of such a run.
fn run_message(first: PageIndex, pages: u64, flags: u32) -> Vec<u8> {
    let entry = EntryMessage {
        vaddr: first.address(),
        compat_nr_pages: 0,
        in_parent: None,
        flags: Some(flags),
        nr_pages: Some(pages),
    };
    entry.encode_to_vec()
}

/// A pagemap image of these runs, each a first page and a count, all with the same flags.
pub(super) fn encode_runs(pages_id: u32, flags: u32, runs: impl Iterator<Item = (PageIndex, u64)>) -> Vec<u8> {
    let entries = runs.map(|(first, pages)| run_message(first, pages, flags));
    let messages: Vec<_> = std::iter::once(HeadMessage { pages_id }.encode_to_vec())
        .chain(entries)
        .collect();
    framing::image(PAGEMAP_MAGIC, messages.iter().map(Vec::as_slice))
}

/// Field numbers of an entry's message.
pub(super) const FIELD_ADDRESS: u64 = 1;
pub(super) const FIELD_PAGES: u64 = 5;

/// An entry of a pagemap image as encoded there, with checked addresses.
pub(super) struct RawEntry<'a> {
    /// Number of the entry, from 1: the head is 0.
    pub(super) number: usize,
    pub(super) message: &'a [u8],
    pub(super) address: u64,
    pub(super) pages: u64,
    /// `PE_*`.
    pub(super) flags: u32,
}

/// Parses a pagemap image into the number of its pages image, its head, and the result of `of` for each entry.
pub(super) fn parse_with<T>(
    image: &[u8],
    of: impl Fn(RawEntry<'_>) -> Result<T, ImageError>,
) -> Result<(u32, Vec<u8>, Vec<T>), ImageError> {
    let messages = framing::entries(image, PAGEMAP_MAGIC).map_err(|cause| ImageError::Framing { kind: KIND, cause })?;
    let HeadMessage { pages_id } = first_message(&messages, KIND)?;
    let mut runs = Vec::with_capacity(messages.len() - 1);
    let mut end = 0;
    for (number, message) in messages.iter().enumerate().skip(1) {
        let fields = EntryMessage::decode(*message).map_err(|cause| ImageError::Message {
            kind: KIND,
            entry: number,
            cause,
        })?;
        let entry = checked(number, message, &fields, end)?;
        // Checked to be below the end of the address space.
        end = entry.address + entry.pages * PAGE_BYTES as u64;
        runs.push(of(entry)?);
    }
    Ok((pages_id, messages[0].to_vec(), runs))
}

/// Checks that entries are sorted by address, consist of whole pages, and lie below the end of the address space.
fn checked<'a>(number: usize, message: &'a [u8], fields: &EntryMessage, end: u64) -> Result<RawEntry<'a>, ImageError> {
    let address = fields.vaddr;
    let pages = fields.nr_pages.unwrap_or(u64::from(fields.compat_nr_pages));
    let page = PAGE_BYTES as u64;
    let last = pages.checked_mul(page).and_then(|b| b.checked_add(address));
    if pages == 0 || last.is_none_or(|l| l > ADDRESS_END) || !address.is_multiple_of(page) || address < end {
        return Err(ImageError::Range { address, pages });
    }
    // Images from before the flags express this through in_parent alone.
    let in_parent = fields.in_parent.unwrap_or(false);
    let mut flags = fields.flags.unwrap_or(if in_parent { 0 } else { PE_PRESENT });
    if in_parent {
        flags |= PE_PARENT;
    }
    Ok(RawEntry {
        number,
        message,
        address,
        pages,
        flags,
    })
}

/// A run of eager pages and its position in the pages image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EagerRun {
    /// Its first page.
    pub first: PageIndex,
    /// Number of pages.
    pub pages: u64,
    /// Number of eager pages before it in the pages image.
    pub at: u64,
}

/// Where a page of a pages image comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFrom {
    /// This page of the original pages image.
    Image(u64),
    /// This one of the added pages.
    Added(usize),
}

/// Adds pages to a pagemap image of eager runs. `pages` is sorted by address. Returns the number of its pages image,
/// the new pagemap image, and the source of each page of the new pages image, in order.
///
/// # Errors
/// If the image does not parse.
pub fn with_eager_pages(image: &[u8], pages: &[PageIndex]) -> Result<(u32, Vec<u8>, Vec<PageFrom>), ImageError> {
    let parsed = PagemapImage::parse(image)?;
    let (encoded, order) = parsed.encode_with(pages);
    Ok((parsed.pages_id, encoded, order))
}

/// A run of pages in a pagemap image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagemapEntry {
    /// Its first page.
    pub first: PageIndex,
    /// Number of pages.
    pub pages: u64,
    /// Whether this is private anonymous memory that CRIU can restore lazily.
    pub lazy: bool,
    message: Vec<u8>,
}

/// A pagemap image whose pages are all in the pages image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagemapImage {
    /// N of the `pages-N.img` that holds the pages.
    pub pages_id: u32,
    /// Runs, by address.
    pub entries: Vec<PagemapEntry>,
    head: Vec<u8>,
}

impl PagemapEntry {
    /// The entry's message, restricted to these of its pages.
    fn part(&self, first: u64, pages: u64) -> Result<Vec<u8>, ImageError> {
        wire::with_varint(&self.message, FIELD_ADDRESS, PageIndex(first).address())
            .and_then(|message| wire::with_varint(&message, FIELD_PAGES, pages))
            .map_err(|cause| ImageError::Wire { kind: KIND, cause })
    }
}

impl PagemapImage {
    /// Parses a pagemap image. An image with pages elsewhere is rejected.
    pub fn parse(image: &[u8]) -> Result<Self, ImageError> {
        let (pages_id, head, entries) = parse_with(image, plain)?;
        Ok(Self {
            pages_id,
            entries,
            head,
        })
    }

    /// The positions in the pages image of eager pages that lie in one of `ranges`. `ranges` and the returned runs are
    /// sorted by address. Each run is inside one range and one entry.
    pub(super) fn eager_in(&self, ranges: &[Range<PageIndex>]) -> Vec<EagerRun> {
        let mut runs = Vec::new();
        let mut at = 0;
        for entry in self.entries.iter().filter(|e| !e.lazy) {
            let (start, end) = (entry.first.0, entry.first.0 + entry.pages);
            let from = ranges.partition_point(|r| r.end.0 <= start);
            for range in ranges[from..].iter().take_while(|r| r.start.0 < end) {
                let (first, last) = (range.start.0.max(start), range.end.0.min(end));
                runs.push(EagerRun {
                    first: PageIndex(first),
                    pages: last - first,
                    at: at + (first - start),
                });
            }
            at += entry.pages;
        }
        runs
    }

    /// Encodes the eager runs without `taken`, which [`Self::eager_in`] returned. Also returns the pages that are kept,
    /// in order.
    pub(super) fn encode_eager_without(&self, taken: &[EagerRun]) -> Result<(Vec<u8>, Vec<EagerRun>), ImageError> {
        let (mut messages, mut kept) = (vec![self.head.clone()], Vec::new());
        let (mut at, mut taken) = (0, taken.iter().peekable());
        for entry in self.entries.iter().filter(|e| !e.lazy) {
            let (start, end) = (entry.first.0, entry.first.0 + entry.pages);
            let mut done = start;
            let mut keep = |first: u64, last: u64| {
                if first < last {
                    messages.push(entry.part(first, last - first)?);
                    kept.push(EagerRun {
                        first: PageIndex(first),
                        pages: last - first,
                        at: at + (first - start),
                    });
                }
                Ok(())
            };
            while let Some(run) = taken.next_if(|run| run.first.0 < end) {
                keep(done, run.first.0)?;
                done = run.first.0 + run.pages;
            }
            keep(done, end)?;
            at += entry.pages;
        }
        Ok((framing::image(PAGEMAP_MAGIC, messages.iter().map(Vec::as_slice)), kept))
    }

    /// Encodes the image, which has eager runs only, with `pages` added. `pages` is sorted by address. Also returns
    /// where each page of the resulting pages image comes from. Pages that the image already has are skipped.
    pub(super) fn encode_with(&self, pages: &[PageIndex]) -> (Vec<u8>, Vec<PageFrom>) {
        let (mut messages, mut order) = (vec![self.head.clone()], Vec::new());
        let mut added = pages.iter().enumerate().peekable();
        let mut at = 0;
        let add = |(index, page): (usize, &PageIndex), messages: &mut Vec<Vec<u8>>, order: &mut Vec<PageFrom>| {
            messages.push(run_message(*page, 1, PE_PRESENT));
            order.push(PageFrom::Added(index));
        };
        for entry in self.entries.iter().filter(|e| !e.lazy) {
            while let Some(new) = added.next_if(|(_, page)| **page < entry.first) {
                add(new, &mut messages, &mut order);
            }
            while added
                .next_if(|(_, page)| page.0 < entry.first.0 + entry.pages)
                .is_some()
            {}
            messages.push(entry.message.clone());
            order.extend((at..at + entry.pages).map(PageFrom::Image));
            at += entry.pages;
        }
        for new in added {
            add(new, &mut messages, &mut order);
        }
        (framing::image(PAGEMAP_MAGIC, messages.iter().map(Vec::as_slice)), order)
    }

    /// Encodes the image with those pages marked as lazy that CRIU can restore lazily by its own rule. `None` if that
    /// changes nothing. `mm` is the process's `mm-PID.img`.
    ///
    /// CRIU up to 4.2.1 marks no page at all if the stack pointer of a thread is a multiple of the page size, as about
    /// one in 256 is. `is_stack` in its `criu/mem.c` compares the wrong bits. Such a process would be restored eagerly.
    ///
    /// # Errors
    /// If `mm` does not parse.
    pub fn encode_with_lazy(&self, mm: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
        if self.entries.iter().any(|entry| entry.lazy) {
            return Ok(None);
        }
        let lazy = MmImage::parse(mm)?.lazy_pages();
        let (mut messages, mut is_changed) = (vec![self.head.clone()], false);
        for entry in &self.entries {
            let (start, end) = (entry.first.0, entry.first.0 + entry.pages);
            let from = lazy.partition_point(|range| range.end.0 <= start);
            let inside = lazy[from..].iter().take_while(|range| range.start.0 < end);
            let mut inside = inside
                .map(|range| range.start.0.max(start)..range.end.0.min(end))
                .peekable();
            if inside.peek().is_none() {
                messages.push(entry.message.clone());
                continue;
            }
            is_changed = true;
            let mut add = |pages: Range<u64>, flags: u32| {
                if !pages.is_empty() {
                    messages.push(run_message(PageIndex(pages.start), pages.end - pages.start, flags));
                }
            };
            let mut done = start;
            for range in inside {
                add(done..range.start, PE_PRESENT);
                done = range.end;
                add(range, PE_PRESENT | PE_LAZY);
            }
            add(done..end, PE_PRESENT);
        }
        let image = || framing::image(PAGEMAP_MAGIC, messages.iter().map(Vec::as_slice));
        Ok(is_changed.then(image))
    }

    /// Encodes only the runs that are not lazy: those that a restore must find in its directory.
    pub fn encode_eager(&self) -> Vec<u8> {
        let eager = self.entries.iter().filter(|e| !e.lazy).map(|e| e.message.as_slice());
        framing::image(PAGEMAP_MAGIC, std::iter::once(self.head.as_slice()).chain(eager))
    }
}

fn plain(entry: RawEntry<'_>) -> Result<PagemapEntry, ImageError> {
    let RawEntry { address, flags, .. } = entry;
    if flags & PE_PARENT != 0 {
        return Err(ImageError::Parent { address });
    }
    if flags & PE_PRESENT == 0 {
        return Err(ImageError::Absent { address });
    }
    Ok(PagemapEntry {
        first: PageIndex::containing(address),
        pages: entry.pages,
        lazy: flags & PE_LAZY != 0,
        message: entry.message.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::mm::{VmaEntry, mm_image_of};
    use super::*;

    fn entry(vaddr: u64, nr_pages: u64, flags: u32) -> EntryMessage {
        EntryMessage {
            vaddr,
            compat_nr_pages: 0,
            in_parent: None,
            flags: Some(flags),
            nr_pages: Some(nr_pages),
        }
    }

    fn image(entries: &[EntryMessage]) -> Vec<u8> {
        let head = HeadMessage { pages_id: 3 }.encode_to_vec();
        // A field of a later CRIU that must survive an edit: tag 15, varint 1.
        let entries = entries.iter().map(|e| [e.encode_to_vec(), vec![0x78, 1]].concat());
        let messages: Vec<_> = std::iter::once(head).chain(entries).collect();
        framing::image(PAGEMAP_MAGIC, messages.iter().map(Vec::as_slice))
    }

    #[test]
    fn an_edit_keeps_eager_runs_byte_for_byte_and_drops_the_lazy() {
        let eager = entry(0x5000, 1, PE_PRESENT);
        let all = image(&[entry(0x1000, 2, PE_PRESENT | PE_LAZY), eager.clone()]);
        let parsed = PagemapImage::parse(&all).unwrap();
        assert_eq!(parsed.pages_id, 3);
        assert_eq!(parsed.encode_eager(), image(&[eager]));
    }

    #[test]
    fn pages_are_lazy_where_criu_would_have_them_lazy_unless_it_has_some() {
        let vma = |start: u64, end: u64, flags: u32| VmaEntry {
            start,
            end,
            flags,
            status: 1,
            ..VmaEntry::default()
        };
        let (anonymous, file, locked) = (0x22, 0x2, 0x2022);
        let mm = mm_image_of(&[
            vma(0x4000, 0x6000, anonymous),
            vma(0x1000, 0x4000, file),
            vma(0x6000, 0x7000, locked),
            vma(0x9000, 0xc000, anonymous),
        ]);
        let of_file = entry(0x1000, 2, PE_PRESENT);
        let before = image(&[
            of_file.clone(),
            entry(0x3000, 4, PE_PRESENT),
            entry(0xa000, 2, PE_PRESENT),
        ]);
        let with_lazy = |image: &[u8]| PagemapImage::parse(image).unwrap().encode_with_lazy(&mm).unwrap();
        let after = with_lazy(&before).unwrap();
        let parsed = PagemapImage::parse(&after).unwrap();
        let runs: Vec<_> = parsed.entries.iter().map(|e| (e.first.0, e.pages, e.lazy)).collect();
        let expected = [(1, 2, false), (3, 1, false), (4, 2, true), (6, 1, false), (10, 2, true)];
        assert_eq!((parsed.pages_id, runs.as_slice()), (3, expected.as_slice()));
        assert_eq!(parsed.encode_eager(), {
            let kept = PagemapImage::parse(&before).unwrap().entries[0].message.clone();
            let others = [3, 6].map(|page| run_message(PageIndex(page), 1, PE_PRESENT));
            let head = HeadMessage { pages_id: 3 }.encode_to_vec();
            let messages = [&head, &kept, &others[0], &others[1]];
            framing::image(PAGEMAP_MAGIC, messages.into_iter().map(Vec::as_slice))
        });
        assert_eq!(with_lazy(&after), None);
        assert_eq!(with_lazy(&image(&[of_file])), None);
    }

    #[test]
    fn pages_are_added_where_they_belong() {
        let (low, high) = (entry(0x3000, 2, PE_PRESENT), entry(0x9000, 1, PE_PRESENT));
        let before = image(&[low.clone(), high.clone()]);
        let (id, after, order) = with_eager_pages(&before, &[1, 4, 5, 11].map(PageIndex)).unwrap();
        let added = |page: u64| EntryMessage {
            flags: Some(PE_PRESENT),
            ..entry(page << 12, 1, 0)
        };
        let runs = |image: &[u8]| -> Vec<_> {
            let entries = PagemapImage::parse(image).unwrap().entries.into_iter();
            entries.map(|e| (e.first, e.pages)).collect()
        };
        // Page 4 was there before.
        let expected = image(&[added(1), low, added(5), high, added(11)]);
        assert_eq!((id, runs(&after)), (3, runs(&expected)));
        let (image, new) = (PageFrom::Image, PageFrom::Added);
        assert_eq!(order, [new(0), image(0), image(1), new(2), image(2), new(3)]);
    }

    #[test]
    fn runs_from_before_nr_pages_and_flags_are_understood() {
        let old = EntryMessage {
            vaddr: 0x1000,
            compat_nr_pages: 7,
            ..EntryMessage::default()
        };
        let parsed = PagemapImage::parse(&image(&[old])).unwrap();
        assert_eq!((parsed.entries[0].pages, parsed.entries[0].lazy), (7, false));
    }

    #[test]
    fn pages_that_are_elsewhere_are_refused_saying_how_to_dump() {
        let parent = PagemapImage::parse(&image(&[entry(0x1000, 1, PE_PARENT)])).unwrap_err();
        assert!(parent.to_string().contains("--prev-images-dir"), "{parent}");
        let absent = PagemapImage::parse(&image(&[entry(0x1000, 1, PE_LAZY)])).unwrap_err();
        assert!(absent.to_string().contains("--lazy-pages"), "{absent}");
    }

    #[test]
    fn runs_out_of_order_or_range_are_refused() {
        for entries in [
            vec![entry(0x1001, 1, PE_PRESENT)],
            vec![entry(0x1000, 0, PE_PRESENT)],
            vec![entry(0x1000, u64::MAX / 2, PE_PRESENT)],
            vec![entry(ADDRESS_END, 1, PE_PRESENT)],
            vec![entry(0x1000, 2, PE_PRESENT), entry(0x2000, 1, PE_PRESENT)],
        ] {
            let error = PagemapImage::parse(&image(&entries)).unwrap_err();
            assert!(matches!(error, ImageError::Range { .. }), "{error}");
        }
    }
}
