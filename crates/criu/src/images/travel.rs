//! Images of a migrating instance: input that makes CRIU dump no page contents, and the resulting images' meaning.
//! Pure.
//!
//! CRIU omits from a dump what an earlier dump has. Given an earlier one that has everything, it only records which
//! pages exist ([`PE_PARENT`]). Where the kernel tracks changed pages, CRIU dumps the changed ones. Pages that a
//! private mapping of a template has not written do not count as the process's pages.

use std::collections::HashMap;

use prost::Message as _;

use super::files::FilesImage;
use super::inventory::INVENTORY_MAGIC;
use super::mm::MmImage;
use super::pagemap::{PE_PARENT, PE_PRESENT, encode_runs, parse_with};
use super::template::TemplateArea;
use super::{ImageError, framing};
use crate::{PAGE_BYTES, PageIndex};

/// The version that CRIU up to 4.2 writes.
const IMAGES_VERSION: u32 = 2;
/// Later than the start of any process, in microseconds. So no process is taken for another one with the same pid.
const LATE_US: u64 = 1 << 60;
/// Size of the user address space in pages.
const ADDRESS_PAGES: u64 = 1 << 45;

#[derive(Clone, PartialEq, prost::Message)]
struct ParentInventory {
    #[prost(uint32, required, tag = "1")]
    version: u32,
    #[prost(uint64, optional, tag = "8")]
    dump_uptime: Option<u64>,
}

/// The files of an earlier dump that has every page of the processes with these ids: names and contents.
pub fn parent_images(pids: impl IntoIterator<Item = i32>) -> Vec<(String, Vec<u8>)> {
    let inventory = ParentInventory {
        version: IMAGES_VERSION,
        dump_uptime: Some(LATE_US),
    }
    .encode_to_vec();
    let inventory = framing::bare_image(INVENTORY_MAGIC, std::iter::once(inventory.as_slice()));
    let everything = encode_runs(1, PE_PRESENT, std::iter::once((PageIndex(0), ADDRESS_PAGES)));
    let pagemaps = pids
        .into_iter()
        .map(|pid| (format!("pagemap-{pid}.img"), everything.clone()));
    [
        ("inventory.img".to_owned(), inventory),
        ("pages-1.img".to_owned(), Vec::new()),
    ]
    .into_iter()
    .chain(pagemaps)
    .collect()
}

/// Consecutive private pages of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenRun {
    /// First page.
    pub first: PageIndex,
    /// Number of pages.
    pub pages: u64,
    /// Whether CRIU must restore them itself because no pager can.
    pub eager: bool,
    /// Number of pages before them in the pages image. `None` if they are not in it.
    pub at: Option<u64>,
}

/// The memory of a migrating process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Travelling {
    /// N of its `pages-N.img`.
    pub pages_id: u32,
    /// Pages that the process has written, by address.
    pub written: Vec<WrittenRun>,
    /// Areas that map a template, by address, each with the template's file id.
    pub mapped: Vec<(TemplateArea, u32)>,
    /// Other private memory that a pager serves, by address: first page and number of pages.
    pub lazy: Vec<(PageIndex, u64)>,
    /// Whether all of `lazy` is plain anonymous memory, which a pager can register itself.
    pub plain: bool,
}

impl Travelling {
    /// The pagemap image of the pages that CRIU restores itself, in the order of [`Self::eager`].
    pub fn pagemap(&self) -> Vec<u8> {
        encode_runs(
            self.pages_id,
            PE_PRESENT,
            self.eager().map(|run| (run.first, run.pages)),
        )
    }

    /// The pages that CRIU restores itself.
    pub fn eager(&self) -> impl Iterator<Item = &WrittenRun> {
        self.written.iter().filter(|run| run.eager)
    }
}

/// Interprets the images `mm-PID.img` and `pagemap-PID.img` of such a dump. `templates` are the file ids of templates.
/// Pages with one of the addresses `early` are eager, because the kernel touches them before a pager could answer.
///
/// # Errors
/// If an image does not parse.
pub fn travelling(mm: &[u8], pagemap: &[u8], templates: &[u32], early: &[u64]) -> Result<Travelling, ImageError> {
    let mm = MmImage::parse(mm)?;
    let page = PAGE_BYTES as u64;
    let (mut mapped, mut lazy, mut plain) = (Vec::new(), Vec::new(), true);
    let mut vmas: Vec<_> = mm.vmas().collect();
    vmas.sort_by_key(|(_, vma)| vma.start);
    for (at, vma) in vmas {
        let (first, pages) = (PageIndex(vma.start / page), vma.end.saturating_sub(vma.start) / page);
        let template = mm.file_mapping(at).filter(|m| templates.contains(&m.file));
        if let Some(mapping) = template {
            let at = mapping.offset / page;
            mapped.push((TemplateArea { first, pages, at }, mapping.file));
        } else if mm.can_be_lazy(at) {
            lazy.push((first, pages));
            plain &= mm.is_anonymous(at);
        }
    }
    let served: Vec<_> = {
        let areas = mapped.iter().map(|(area, _)| (area.first, area.pages));
        let mut all: Vec<_> = areas.chain(lazy.iter().copied()).collect();
        all.sort_by_key(|(first, _)| *first);
        all
    };
    let mut early: Vec<_> = early.iter().map(|address| address / page).collect();
    early.sort_unstable();
    let (pages_id, _, entries) = parse_with(pagemap, |entry| Ok((entry.address / page, entry.pages, entry.flags)))?;
    let (mut written, mut at) = (Vec::new(), 0);
    for (first, pages, flags) in entries {
        let present = flags & PE_PRESENT != 0;
        if !present && flags & PE_PARENT == 0 {
            return Err(ImageError::Absent { address: first * page });
        }
        cut(first, pages, present.then_some(at), &served, &early, &mut written);
        at += if present { pages } else { 0 };
    }
    Ok(Travelling {
        pages_id,
        written,
        mapped,
        lazy,
        plain,
    })
}

/// Cuts a run at the bounds of what a pager serves.
fn cut(
    first: u64,
    pages: u64,
    at: Option<u64>,
    served: &[(PageIndex, u64)],
    early: &[u64],
    into: &mut Vec<WrittenRun>,
) {
    let end = first + pages;
    let mut page = first;
    while page < end {
        let index = served.partition_point(|(start, _)| start.0 <= page);
        let inside = index.checked_sub(1).map(|i| served[i]).filter(|(s, n)| page < s.0 + n);
        let mut until = match inside {
            Some((start, pages)) => start.0 + pages,
            None => served.get(index).map_or(u64::MAX, |(start, _)| start.0),
        };
        let is_early = early.binary_search(&page).is_ok();
        if is_early {
            until = page + 1;
        } else if let Some(next) = early.get(early.partition_point(|e| *e <= page)) {
            until = until.min(*next);
        }
        let until = until.min(end);
        into.push(WrittenRun {
            first: PageIndex(page),
            pages: until - page,
            eager: is_early || inside.is_none(),
            at: at.map(|at| at + (page - first)),
        });
        page = until;
    }
}

/// Changes the paths of files that were dumped under names from [`external_file`](crate::descriptors::external_file),
/// so that CRIU opens these paths instead. Returns the image, and the ids of the files found in it. One file may have
/// several ids, because CRIU remembers only a few files.
///
/// # Errors
/// If the image does not parse.
pub fn place_external(files: &[u8], names: &[(&str, &str)]) -> Result<(Vec<u8>, Vec<u32>), ImageError> {
    let files = FilesImage::parse(files)?;
    let of = |(name, path)| files.ids_of(name).map(move |id| (id, path));
    let found: HashMap<u32, &str> = names.iter().copied().flat_map(of).collect();
    let image = files.encode_placed(&found)?;
    Ok((image, found.into_keys().collect()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::mm_image;
    use super::*;

    #[test]
    fn a_parent_has_every_page_and_a_dump_that_relies_on_it_is_cut_by_who_serves_it() {
        let files = parent_images([501]);
        let (_, parent) = files.iter().find(|(name, _)| name == "pagemap-501.img").unwrap();
        let (_, _, runs) = parse_with(parent, |e| Ok((e.address, e.pages))).unwrap();
        assert_eq!(runs, [(0, ADDRESS_PAGES)]);
        // Mappings of no known kind: none of them is served.
        let mm = mm_image(&[(0x1000, 0x8000, 1)]);
        let pagemap = encode_runs(7, PE_PARENT, [(PageIndex(1), 3)].into_iter());
        let moving = travelling(&mm, &pagemap, &[], &[]).unwrap();
        assert_eq!(moving.pages_id, 7);
        assert!(moving.eager().count() == moving.written.len());
        let empty = encode_runs(7, 0, [(PageIndex(1), 3)].into_iter());
        assert!(matches!(
            travelling(&mm, &empty, &[], &[]),
            Err(ImageError::Absent { .. })
        ));
    }

    #[test]
    fn runs_are_cut_at_the_edges_of_what_is_served_and_around_what_is_touched_early() {
        let run = |first, pages, eager, at| WrittenRun {
            first: PageIndex(first),
            pages,
            eager,
            at: Some(at),
        };
        let mut written = Vec::new();
        let served = [(PageIndex(4), 4), (PageIndex(10), 2)];
        cut(2, 10, Some(5), &served, &[6], &mut written);
        let expected = [
            run(2, 2, true, 5),
            run(4, 2, false, 7),
            run(6, 1, true, 9),
            run(7, 1, false, 10),
            run(8, 2, true, 11),
            run(10, 2, false, 13),
        ];
        assert_eq!(written, expected);
    }
}
