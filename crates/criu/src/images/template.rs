//! Edits images so that private anonymous memory becomes private mappings of one file per process, its template. Pure.
//!
//! The data of programs and libraries that a process has written to is private memory too. Those pages move from the
//! pages image into the template, and their mappings are cut there ("folded"). A few unwritten pages between them are
//! folded as well, with the file's contents, because CRIU needs some 20 µs per mapping.
//!
//! In the template, a process's mappings follow each other in address order. Adjacent mappings stay adjacent, so that
//! the kernel can merge them as before.

use std::collections::HashSet;
use std::ops::Range;

use super::ImageError;
use super::files::FilesImage;
use super::mm::{FileMapping, MmImage, RemappedPart, Vma};
use super::pagemap::{EagerRun, PagemapImage};
use crate::{PAGE_BYTES, PageIndex};

/// Maximum size of a template, in bytes of addresses (not of memory). Larger processes are restored without one.
const TEMPLATE_BYTES_MAX: u64 = 1 << 40;

/// Maximum number of unwritten pages folded between two written ones. Each extra piece of a mapping costs a restore as
/// much as mapping this many pages.
const GAP_PAGES_MAX: u64 = 16;

/// A range of addresses that maps the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateArea {
    /// First page.
    pub first: PageIndex,
    /// Number of pages.
    pub pages: u64,
    /// The template's page at its first page.
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
    /// Mappings of the template, by address. They follow each other in it without gaps.
    pub mappings: Vec<TemplateArea>,
    /// Anonymous mappings for which the snapshot holds no memory. The kernel itself can serve them.
    pub empty: Vec<TemplateArea>,
    /// Anonymous mappings without a template for which the snapshot holds memory, by address. By CRIU's own rule, a
    /// pager serves them. `None` if some of them are not plain memory, which only CRIU can prepare for a pager.
    pub anonymous: Option<Vec<TemplateArea>>,
    /// Those of `mappings` that replace a private file mapping, by address. They contain the written pages, which were
    /// eager, and the pages between them.
    pub folded: Vec<FoldedArea>,
}

/// A part of a private file mapping that the process had written to. A few of its pages may equal the file's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedArea {
    /// The area of the template that it maps.
    pub area: TemplateArea,
    /// Path of the file in the process's mount namespace.
    pub file: String,
    /// Offset in the file of its first page. The area reads as this part of the file once the process has discarded its
    /// own copy.
    pub offset: u64,
}

fn containing<T>(areas: &[T], page: PageIndex, area: impl Fn(&T) -> &TemplateArea) -> Option<&T> {
    let after = areas.partition_point(|a| area(a).first <= page);
    let found = areas.get(after.checked_sub(1)?)?;
    (page < area(found).end()).then_some(found)
}

impl TemplateLayout {
    /// Pages in the template, over all mappings.
    pub fn pages(&self) -> u64 {
        self.mappings.last().map_or(0, |m| m.at + m.pages)
    }

    /// The mapping that contains `page`.
    pub fn mapping(&self, page: PageIndex) -> Option<&TemplateArea> {
        containing(&self.mappings, page, |m| m)
    }

    /// The folded area that contains `page`.
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
    /// Returns whether the snapshot holds memory for any of these pages.
    pub holds_any: &'a dyn Fn(Range<PageIndex>) -> bool,
    /// The absolute path at which CRIU opens the template.
    pub path: &'a str,
}

/// The edited images.
#[derive(Debug)]
pub struct TemplateImages {
    /// `files.img`.
    pub files: Vec<u8>,
    /// The edit of each process. `None` if it must be restored without a template.
    pub processes: Vec<Option<TemplateEdit>>,
}

/// A process's edited images.
#[derive(Debug)]
pub struct TemplateEdit {
    /// `mm-PID.img`.
    pub mm: Vec<u8>,
    /// `pagemap-PID.img`.
    pub pagemap: Vec<u8>,
    /// The layout of its memory.
    pub layout: TemplateLayout,
    /// N of its `pages-N.img`.
    pub pages_id: u32,
    /// Pages of that file that move into the template.
    pub folded: Vec<EagerRun>,
    /// Pages that stay, in order.
    pub kept: Vec<EagerRun>,
}

/// Edits the images of `processes`. A process is left unchanged if its image has something unknown or is too large.
/// `lasting` tells whether a path names the same file wherever the snapshot is restored.
///
/// # Errors
/// If an image does not parse.
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

/// The pages of a mapping. `None` if its bounds are not page-aligned.
fn whole_pages(vma: Vma) -> Option<Range<PageIndex>> {
    let page = PAGE_BYTES as u64;
    let whole = vma.start < vma.end && vma.start.is_multiple_of(page) && vma.end.is_multiple_of(page);
    whole.then(|| PageIndex(vma.start / page)..PageIndex(vma.end / page))
}

/// The process's mappings that map the template, as they are found.
struct Plan {
    layout: TemplateLayout,
    /// Mappings that map it as a whole.
    whole: Vec<(usize, u64)>,
    /// Mappings that map it in part.
    cut: Vec<(usize, Vec<RemappedPart>)>,
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

/// Plans which parts of the process map a template. `None` if its mappings are inconsistent.
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
    // Only the data of programs and libraries is folded. A program may extend other kinds of files, and a template has
    // nothing beyond a file's end.
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
            if (process.holds_any)(pages.clone()) {
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
            if (process.holds_any)(pages.clone()) {
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

/// Merges runs of one mapping, sorted by address, into few ranges. Small gaps between runs are included.
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

/// Maps the written parts of a private file mapping from the template.
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
        parts.push(RemappedPart {
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
