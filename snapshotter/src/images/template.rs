//! Edits images so that private anonymous memory becomes private mappings of one file a process, its template. Pure.
//!
//! What a process has written of its programs' and libraries' data is private memory too: those pages move from the pages
//! image into the template, and their mappings are cut there ("folded"). A few pages between them that it has not written are folded along, as
//! the file has them: CRIU takes some 20 µs for each mapping.
//!
//! In the template, the mappings of a process lie one after the other in the order of their addresses; those that touch
//! stay together, so that the kernel can join them as it could before.

use std::collections::HashSet;
use std::ops::Range;

use super::ImageError;
use super::files::FilesImage;
use super::mm::{FileMapping, MmImage, Part, Vma};
use super::pagemap::{EagerRun, PagemapImage};
use crate::codec::PAGE_BYTES;
use crate::pagemap::{PageIndex, PageMap};

/// The largest template, bytes of addresses (not of memory): what is larger is restored without.
const TEMPLATE_BYTES_MAX: u64 = 1 << 40;

/// Pages not written that are folded along, between two that were: each piece of a mapping costs a restore what mapping so many pages does.
const GAP_PAGES_MAX: u64 = 16;

/// A range of addresses that maps the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateArea {
    /// Its first page.
    pub first: PageIndex,
    /// How many pages.
    pub pages: u64,
    /// Which page of the template its first page is.
    pub at: u64,
}

impl TemplateArea {
    /// One past its last page.
    pub fn end(&self) -> PageIndex {
        PageIndex(self.first.0 + self.pages)
    }
}

/// How a process's memory is laid out for a restore from a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateLayout {
    /// Mappings that map the template, by address. They lie in it one after the other, without gaps.
    pub mappings: Vec<TemplateArea>,
    /// Anonymous mappings of which the snapshot holds nothing: the kernel itself can serve them.
    pub empty: Vec<TemplateArea>,
    /// Anonymous mappings that map no template and of which the snapshot holds something, by address: CRIU's own rule has them served by a pager. `None` if
    /// there are such that are no plain memory, which only CRIU can prepare for that.
    pub anonymous: Option<Vec<TemplateArea>>,
    /// Those of `mappings` that stood for a private mapping of a file, by address. Their pages are those that were written, and so were
    /// eager, and what lay between.
    pub folded: Vec<FoldedArea>,
}

/// A part of a private mapping of a file that the process had written to; a few of its pages may be as the file has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedArea {
    /// Which of the template it maps.
    pub area: TemplateArea,
    /// The file, by its path in the process's own mount namespace.
    pub file: String,
    /// Which byte of the file its first page is: what it reads as when the process has given its own copy up.
    pub offset: u64,
}

fn containing<T>(areas: &[T], page: PageIndex, area: impl Fn(&T) -> &TemplateArea) -> Option<&T> {
    let after = areas.partition_point(|a| area(a).first <= page);
    let found = areas.get(after.checked_sub(1)?)?;
    (page < area(found).end()).then_some(found)
}

impl TemplateLayout {
    /// Pages of the template: those of all mappings.
    pub fn pages(&self) -> u64 {
        self.mappings.last().map_or(0, |m| m.at + m.pages)
    }

    /// The mapping `page` is in.
    pub fn mapping(&self, page: PageIndex) -> Option<&TemplateArea> {
        containing(&self.mappings, page, |m| m)
    }

    /// The folded area `page` is in.
    pub fn folded(&self, page: PageIndex) -> Option<&FoldedArea> {
        containing(&self.folded, page, |f| &f.area)
    }
}

/// A process to be restored from a template.
pub struct TemplateProcess<'a> {
    /// Its `mm-PID.img`.
    pub mm: &'a [u8],
    /// Its `pagemap-PID.img`.
    pub pagemap: &'a [u8],
    /// Where its pages are to be had.
    pub page_map: &'a PageMap,
    /// The absolute path by which CRIU opens the template.
    pub path: &'a str,
}

/// What the images become.
#[derive(Debug)]
pub struct TemplateImages {
    /// `files.img`.
    pub files: Vec<u8>,
    /// For each process what becomes of it; `None` for one that must be restored without.
    pub processes: Vec<Option<TemplateEdit>>,
}

/// What a process's images become.
#[derive(Debug)]
pub struct TemplateEdit {
    /// `mm-PID.img`.
    pub mm: Vec<u8>,
    /// `pagemap-PID.img`.
    pub pagemap: Vec<u8>,
    /// How its memory is laid out.
    pub layout: TemplateLayout,
    /// N of its `pages-N.img`.
    pub pages_id: u32,
    /// Which of the pages in it go into the template.
    pub folded: Vec<EagerRun>,
    /// Which stay, in their order.
    pub kept: Vec<EagerRun>,
}

/// Edits the images of `processes`. One whose image holds what we do not know, or that is too large, is left as it is.
/// `lasting` tells whether the file of a path is the same wherever the snapshot is restored.
///
/// # Errors
/// When an image does not parse.
pub fn map_templates(
    files: &[u8],
    processes: &[TemplateProcess<'_>],
    lasting: impl Fn(&str) -> bool,
) -> Result<TemplateImages, ImageError> {
    let mut files = FilesImage::parse(files)?;
    let mut edited = Vec::with_capacity(processes.len());
    for process in processes {
        edited.push(map_template(process, &mut files, &lasting)?);
    }
    Ok(TemplateImages {
        files: files.encode(),
        processes: edited,
    })
}

/// Whole pages of a mapping; `None` if it does not consist of such.
fn whole_pages(vma: Vma) -> Option<Range<PageIndex>> {
    let page = PAGE_BYTES as u64;
    let whole = vma.start < vma.end && vma.start.is_multiple_of(page) && vma.end.is_multiple_of(page);
    whole.then(|| PageIndex(vma.start / page)..PageIndex(vma.end / page))
}

/// The process's mappings that map the template, as they are found.
struct Plan {
    layout: TemplateLayout,
    /// Mappings that do as a whole.
    whole: Vec<(usize, u64)>,
    /// Those that do in part.
    cut: Vec<(usize, Vec<Part>)>,
}

impl Plan {
    /// Adds pages to the template. `None` if they overlap with others.
    fn add(&mut self, first: PageIndex, pages: u64) -> Option<TemplateArea> {
        let at = self.layout.pages();
        let area = TemplateArea { first, pages, at };
        if self.layout.mappings.last().is_some_and(|last| last.end() > first) {
            return None;
        }
        self.layout.mappings.push(area);
        Some(area)
    }
}

fn map_template(
    process: &TemplateProcess<'_>,
    files: &mut FilesImage<'_>,
    lasting: &impl Fn(&str) -> bool,
) -> Result<Option<TemplateEdit>, ImageError> {
    let mut mm = MmImage::parse(process.mm)?;
    let pagemap = PagemapImage::parse(process.pagemap)?;
    if !mm.is_faithful(process.mm) {
        return Ok(None);
    }
    let Some(plan) = plan(process, &mm, &pagemap, files, lasting) else {
        return Ok(None);
    };
    let too_large = plan.layout.pages() > TEMPLATE_BYTES_MAX / PAGE_BYTES as u64;
    if plan.layout.mappings.is_empty() || too_large {
        return Ok(None);
    }
    let Some(id) = files.add(process.path) else {
        return Ok(None);
    };
    for (at, offset) in plan.whole {
        mm.map_file(at, id, offset);
    }
    for (at, parts) in plan.cut {
        mm.map_parts(at, id, &parts);
    }
    let areas = plan.layout.folded.iter().map(|f| f.area.first..f.area.end());
    let folded = pagemap.eager_in(&areas.collect::<Vec<_>>());
    let (pagemap_image, kept) = pagemap.encode_eager_without(&folded)?;
    Ok(Some(TemplateEdit {
        mm: mm.encode(),
        pagemap: pagemap_image,
        layout: plan.layout,
        pages_id: pagemap.pages_id,
        folded,
        kept,
    }))
}

/// What of the process can map a template; `None` if its mappings make no sense.
fn plan(
    process: &TemplateProcess<'_>,
    mm: &MmImage,
    pagemap: &PagemapImage,
    files: &FilesImage<'_>,
    lasting: &impl Fn(&str) -> bool,
) -> Option<Plan> {
    let mut plan = Plan {
        layout: TemplateLayout {
            anonymous: Some(Vec::new()),
            ..TemplateLayout::default()
        },
        whole: Vec::new(),
        cut: Vec::new(),
    };
    // Only the data of programs and libraries: a mapping of another kind of file may be grown by the program, and what
    // lies behind its end is nothing that a template has.
    let code: HashSet<_> = mm
        .vmas()
        .filter_map(|(at, _)| mm.file_mapping(at).filter(|m| m.executable))
        .filter_map(|m| files.name(m.file))
        .collect();
    let mut vmas: Vec<_> = mm.vmas().collect();
    vmas.sort_by_key(|(_, vma)| vma.start);
    for (at, vma) in vmas {
        let data_of = |mapping: FileMapping| {
            let name = files.name(mapping.file)?;
            (!mapping.executable && code.contains(name) && lasting(name)).then_some((mapping, name))
        };
        if mm.can_map_a_file(at) {
            let pages = whole_pages(vma)?;
            if process.page_map.holds_any(pages.start, pages.end) {
                let area = plan.add(pages.start, pages.end.0 - pages.start.0)?;
                plan.whole.push((at, area.at * PAGE_BYTES as u64));
            } else {
                plan.layout.empty.push(TemplateArea {
                    first: pages.start,
                    pages: pages.end.0 - pages.start.0,
                    at: 0,
                });
            }
        } else if let Some((mapping, name)) = mm.file_mapping(at).and_then(data_of) {
            fold(&mut plan, at, &whole_pages(vma)?, mapping, name, pagemap)?;
        } else if mm.can_be_lazy(at) {
            let pages = whole_pages(vma)?;
            if process.page_map.holds_any(pages.start, pages.end) {
                let others = plan.layout.anonymous.take().filter(|_| mm.is_anonymous(at));
                plan.layout.anonymous = others.map(|mut others| {
                    others.push(TemplateArea {
                        first: pages.start,
                        pages: pages.end.0 - pages.start.0,
                        at: 0,
                    });
                    others
                });
            }
        }
    }
    Some(plan)
}

/// Runs of one mapping, by address, as few ranges: each with what lies between its runs, where that is little.
fn joined(runs: &[EagerRun]) -> Vec<Range<PageIndex>> {
    let mut ranges: Vec<Range<PageIndex>> = Vec::new();
    for run in runs {
        let end = PageIndex(run.first.0 + run.pages);
        match ranges.last_mut() {
            Some(last) if run.first.0 - last.end.0 <= GAP_PAGES_MAX => last.end = end,
            _ => ranges.push(run.first..end),
        }
    }
    ranges
}

/// Has what was written of a private mapping of a file mapped from the template.
fn fold(
    plan: &mut Plan,
    at: usize,
    pages: &Range<PageIndex>,
    mapping: FileMapping,
    name: &str,
    pagemap: &PagemapImage,
) -> Option<()> {
    let page = PAGE_BYTES as u64;
    let mut parts = Vec::new();
    for run in joined(&pagemap.eager_in(std::slice::from_ref(pages))) {
        let area = plan.add(run.start, run.end.0 - run.start.0)?;
        parts.push(Part {
            range: area.first.0 * page..area.end().0 * page,
            offset: area.at * page,
        });
        plan.layout.folded.push(FoldedArea {
            area,
            file: name.to_owned(),
            offset: mapping.offset.wrapping_add((area.first.0 - pages.start.0) * page),
        });
    }
    if !parts.is_empty() {
        plan.cut.push((at, parts));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_little_between_them_are_one_piece() {
        let run = |first, pages| EagerRun {
            first: PageIndex(first),
            pages,
            at: 0,
        };
        let near = 12 + GAP_PAGES_MAX;
        let far = near + 1 + GAP_PAGES_MAX + 1;
        let pieces = joined(&[run(10, 2), run(near, 1), run(far, 3), run(far + 3, 1)]);
        assert_eq!(
            pieces,
            [PageIndex(10)..PageIndex(near + 1), PageIndex(far)..PageIndex(far + 4)]
        );
        assert_eq!(joined(&[]), []);
    }
}
