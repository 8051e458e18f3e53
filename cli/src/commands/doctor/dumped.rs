//! The memory in a dump of one process, as a source of pages for the pager. Also the images from which CRIU restores if
//! the lazy part comes from that source.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rekindle_criu::images::{PagemapEntry, PagemapImage};
use rekindle_pager::{PAGE, PageLookup, PageRef, PageSource, Pin, SourceError};

/// A parsed pagemap image with its pages image.
pub(super) struct DumpedMemory {
    pid: i32,
    pagemap: PagemapImage,
    /// Offset in `pages` of each entry's pages, bytes.
    starts: Vec<usize>,
    pages: Vec<u8>,
}

impl DumpedMemory {
    /// Reads the memory of process `pid` from the dump in `images`. A dump without lazy memory is refused: it would
    /// prove nothing.
    pub(super) fn read(images: &Path, pid: i32) -> Result<Self> {
        let pagemap = read(&images.join(pagemap_name(pid)))?;
        let pagemap = PagemapImage::parse(&pagemap).with_context(|| format!("{} cannot be used", pagemap_name(pid)))?;
        if !pagemap.entries.iter().any(|e| e.lazy) {
            bail!("{} has no memory that can be restored lazily", pagemap_name(pid));
        }
        let pages = read(&images.join(pages_name(&pagemap)))?;
        let mut starts = Vec::with_capacity(pagemap.entries.len());
        let mut expected = 0_usize;
        for entry in &pagemap.entries {
            starts.push(expected);
            expected = expected.saturating_add(bytes_of(entry));
        }
        if pages.len() != expected {
            let name = pages_name(&pagemap);
            bail!("{name} has {} bytes instead of {expected}", pages.len());
        }
        Ok(Self {
            pid,
            pagemap,
            starts,
            pages,
        })
    }

    /// Makes the directory `to`: the images of `from`, without the lazy memory.
    pub(super) fn write_eager_images(&self, from: &Path, to: &Path) -> Result<()> {
        let (pagemap, pages) = (pagemap_name(self.pid), pages_name(&self.pagemap));
        fs::create_dir(to).with_context(|| format!("{}: cannot be made", to.display()))?;
        for entry in fs::read_dir(from).with_context(|| format!("{}: cannot be read", from.display()))? {
            let entry = entry.with_context(|| format!("{}: cannot be read", from.display()))?;
            let name = entry.file_name();
            if name != *pagemap && name != *pages {
                fs::hard_link(entry.path(), to.join(&name))
                    .with_context(|| format!("{}: cannot be linked", entry.path().display()))?;
            }
        }
        write(&to.join(pagemap), &self.pagemap.encode_eager())?;
        write(&to.join(pages), &self.eager_pages())
    }

    fn eager_pages(&self) -> Vec<u8> {
        let placed = self.pagemap.entries.iter().zip(&self.starts);
        placed
            .filter(|(entry, _)| !entry.lazy)
            .flat_map(|(entry, start)| &self.pages[*start..start + bytes_of(entry)])
            .copied()
            .collect()
    }

    /// The bytes from `page` to the end of its entry.
    fn bytes_from(&self, page: u64) -> Option<&[u8]> {
        let entries = &self.pagemap.entries;
        let at = entries.partition_point(|e| e.first.0 <= page).checked_sub(1)?;
        let (entry, start) = (&entries[at], self.starts[at]);
        let before = page - entry.first.0;
        // The pages before this one in its entry are fewer than the entry's, whose bytes are in memory.
        (before < entry.pages).then(|| &self.pages[start + (before * PAGE) as usize..start + bytes_of(entry)])
    }
}

impl PageSource for DumpedMemory {
    fn held<'a>(&'a self, page: PageRef, _: &'a Pin) -> PageLookup<'a> {
        match self.bytes_from(page.page) {
            Some(bytes) if page.pid == self.pid => PageLookup::Bytes(bytes),
            _ => PageLookup::Zero,
        }
    }

    fn fetch(&self, _page: PageRef) -> Result<(), SourceError> {
        // Nothing is ever absent.
        Ok(())
    }
}

/// Saturating: a size that no file can have is detected when it is compared with the file's size.
fn bytes_of(entry: &PagemapEntry) -> usize {
    usize::try_from(entry.pages.saturating_mul(PAGE)).unwrap_or(usize::MAX)
}

fn pagemap_name(pid: i32) -> String {
    format!("pagemap-{pid}.img")
}

fn pages_name(pagemap: &PagemapImage) -> String {
    format!("pages-{}.img", pagemap.pages_id)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAZY: u8 = 2 | 4;
    const EAGER: u8 = 4;

    /// A length-framed message, as in CRIU's images; lengths and numbers below 128 only.
    fn message(fields: &[(u8, u8)]) -> Vec<u8> {
        let body: Vec<u8> = fields.iter().flat_map(|(tag, value)| [tag << 3, *value]).collect();
        [&[body.len() as u8, 0, 0, 0], body.as_slice()].concat()
    }

    /// `pagemap-7.img` with these runs (first page, pages, flags), and pages each filled with its index in the file.
    fn dump(dir: &Path, runs: &[(u64, u8, u8)], pages: u8) {
        let mut pagemap = [0x5456_4319_u32.to_le_bytes(), 0x5608_4025_u32.to_le_bytes()].concat();
        pagemap.extend(message(&[(1, 1)]));
        for (first, count, flags) in runs {
            let address = first * PAGE;
            // An address as a varint of three bytes.
            let varint = [address & 0x7f | 0x80, address >> 7 & 0x7f | 0x80, address >> 14].map(|b| b as u8);
            let rest = [2 << 3, 0, 4 << 3, *flags, 5 << 3, *count];
            let body = [&[1 << 3], varint.as_slice(), rest.as_slice()].concat();
            pagemap.extend([body.len() as u8, 0, 0, 0]);
            pagemap.extend(body);
        }
        fs::write(dir.join("pagemap-7.img"), pagemap).unwrap();
        let bytes: Vec<u8> = (0..pages).flat_map(|n| vec![n; PAGE as usize]).collect();
        fs::write(dir.join("pages-1.img"), bytes).unwrap();
    }

    fn held(memory: &DumpedMemory, pid: i32, page: u64) -> Option<(usize, u8)> {
        match memory.held(PageRef { pid, page }, &rekindle_pager::pin()) {
            PageLookup::Bytes(bytes) | PageLookup::Mapped(bytes) => Some((bytes.len() / PAGE as usize, bytes[0])),
            PageLookup::Zero => None,
            PageLookup::Absent | PageLookup::Settled => panic!("nothing is absent"),
        }
    }

    #[test]
    fn each_page_has_its_bytes_and_those_up_to_the_end_of_its_run() {
        let dir = tempfile::tempdir().unwrap();
        dump(dir.path(), &[(10, 2, EAGER), (20, 3, LAZY), (30, 1, LAZY)], 6);
        let memory = DumpedMemory::read(dir.path(), 7).unwrap();
        let found: Vec<_> = [9, 10, 12, 20, 22, 23, 30, 31]
            .map(|page| held(&memory, 7, page))
            .into();
        let expected = [
            None,
            Some((2, 0)),
            None,
            Some((3, 2)),
            Some((1, 4)),
            None,
            Some((1, 5)),
            None,
        ];
        assert_eq!(found, expected);
        assert_eq!(held(&memory, 8, 20), None);
    }

    #[test]
    fn what_criu_restores_from_has_no_lazy_memory() {
        let dir = tempfile::tempdir().unwrap();
        dump(
            dir.path(),
            &[(10, 1, LAZY), (20, 2, EAGER), (30, 1, LAZY), (40, 1, EAGER)],
            5,
        );
        fs::write(dir.path().join("core-7.img"), "kept").unwrap();
        let memory = DumpedMemory::read(dir.path(), 7).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let to = elsewhere.path().join("eager");
        memory.write_eager_images(dir.path(), &to).unwrap();
        let pages = fs::read(to.join("pages-1.img")).unwrap();
        let firsts: Vec<u8> = pages.chunks(PAGE as usize).map(|p| p[0]).collect();
        assert_eq!(firsts, [1, 2, 4]);
        let pagemap = PagemapImage::parse(&fs::read(to.join("pagemap-7.img")).unwrap()).unwrap();
        assert!(pagemap.entries.iter().all(|e| !e.lazy) && pagemap.entries.len() == 2);
        assert_eq!(fs::read_to_string(to.join("core-7.img")).unwrap(), "kept");
    }

    #[test]
    fn a_dump_that_is_cut_off_or_has_nothing_lazy_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |runs: &[_], pages| {
            dump(dir.path(), runs, pages);
            DumpedMemory::read(dir.path(), 7).map(drop).unwrap_err().to_string()
        };
        let cut = refused(&[(10, 2, LAZY)], 1);
        assert_eq!(cut, "pages-1.img has 4096 bytes instead of 8192");
        assert!(refused(&[(10, 2, EAGER)], 2).contains("no memory that can be restored lazily"));
    }
}
