//! Edits images so that private anonymous memory becomes private mappings of one file a process, its template. Pure.
//!
//! In the template, the mappings of a process lie one after the other in the order of their addresses; those that touch
//! stay together, so that the kernel can join them as it could before.

use super::ImageError;
use super::files::FilesImage;
use super::mm::MmImage;
use crate::codec::PAGE_BYTES;
use crate::pagemap::{PageIndex, PageMap};

/// The largest template, bytes of addresses (not of memory): what is larger is restored without.
const TEMPLATE_BYTES_MAX: u64 = 1 << 40;

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
}

impl TemplateLayout {
    /// Pages of the template: those of all mappings.
    pub fn pages(&self) -> u64 {
        self.mappings.last().map_or(0, |m| m.at + m.pages)
    }

    /// The mapping `page` is in.
    pub fn mapping(&self, page: PageIndex) -> Option<&TemplateArea> {
        let after = self.mappings.partition_point(|m| m.first <= page);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (page < mapping.end()).then_some(mapping)
    }
}

/// A process to be restored from a template.
pub struct TemplateProcess<'a> {
    /// Its `mm-PID.img`.
    pub mm: &'a [u8],
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
    /// For each process its `mm-PID.img` and its layout; `None` for one that must be restored without.
    pub processes: Vec<Option<(Vec<u8>, TemplateLayout)>>,
}

/// Edits the images of `processes`. One whose image holds what we do not know, or that is too large, is left as it is.
///
/// # Errors
/// When an image does not parse.
pub fn map_templates(files: &[u8], processes: &[TemplateProcess<'_>]) -> Result<TemplateImages, ImageError> {
    let mut files = FilesImage::parse(files)?;
    let mut edited = Vec::with_capacity(processes.len());
    for process in processes {
        edited.push(map_template(process, &mut files)?);
    }
    Ok(TemplateImages {
        files: files.encode(),
        processes: edited,
    })
}

fn map_template(
    process: &TemplateProcess<'_>,
    files: &mut FilesImage<'_>,
) -> Result<Option<(Vec<u8>, TemplateLayout)>, ImageError> {
    let mut mm = MmImage::parse(process.mm)?;
    if !mm.is_faithful(process.mm) {
        return Ok(None);
    }
    let page = PAGE_BYTES as u64;
    let mut candidates: Vec<_> = mm.vmas().filter(|(at, _)| mm.can_map_a_file(*at)).collect();
    candidates.sort_by_key(|(_, vma)| vma.start);
    let mut layout = TemplateLayout::default();
    let mut mapped = Vec::new();
    for (at, vma) in candidates {
        if vma.start >= vma.end || !vma.start.is_multiple_of(page) || !vma.end.is_multiple_of(page) {
            return Ok(None);
        }
        let area = TemplateArea {
            first: PageIndex::containing(vma.start),
            pages: (vma.end - vma.start) / page,
            at: layout.pages(),
        };
        if !process.page_map.holds_any(area.first, area.end()) {
            layout.empty.push(area);
            continue;
        }
        if layout.mappings.last().is_some_and(|last| last.end() > area.first) {
            return Ok(None);
        }
        layout.mappings.push(area);
        mapped.push((at, area.at * page));
    }
    if mapped.is_empty() || layout.pages() > TEMPLATE_BYTES_MAX / page {
        return Ok(None);
    }
    let Some(id) = files.add(process.path) else {
        return Ok(None);
    };
    for (at, offset) in mapped {
        mm.map_file(at, id, offset);
    }
    Ok(Some((mm.encode(), layout)))
}
