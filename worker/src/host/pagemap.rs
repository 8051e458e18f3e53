//! Finds which pages of a process's own are present, by an entry a page from `/proc/PID/pagemap`. For kernels without
//! PAGEMAP_SCAN, such as Debian 12's.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::LazyLock;

use memmap2::MmapMut;
use procfs::process::{MMPermissions, MMapPath, Process};
use rekindle_pager::PAGE;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// A page of a file, or of shared memory.
const FILE: u64 = 1 << 61;
/// The page frame, visible only to root.
const FRAME: u64 = (1 << 55) - 1;
/// Number of entries read at once: 8 bytes each, for 4 MiB.
const READ: usize = 1_024;
/// Size above which a mapping is taken as reserved rather than used: 8 GiB take 16 MiB to read.
const PAGES_MOST: u64 = 2 << 20;

/// Consecutive pages of a process's own memory in the same state: in memory, or evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagemapRun {
    /// The first page's address / 4096.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
    /// Whether they are in memory.
    pub present: bool,
}

/// Runs by address. Adjacent runs in the same state are joined.
#[derive(Debug, Default)]
pub struct PagemapRuns(pub Vec<PagemapRun>);

impl PagemapRuns {
    /// Adds a run that follows all others.
    pub fn add(&mut self, run: PagemapRun) {
        match self.0.last_mut() {
            Some(last) if last.first + last.pages == run.first && last.present == run.present => {
                last.pages += run.pages
            }
            _ => self.0.push(run),
        }
    }
}

/// Does the same as `Memory::look`. Blocks for about as long, and also for memory that is mapped without being present:
/// 30 µs for 32 MiB.
///
/// # Errors
/// Returns an error when the process is gone, or the kernel refuses.
pub fn read(pid: i32) -> io::Result<Vec<PagemapRun>> {
    let gone = |e| match e {
        procfs::ProcError::NotFound(_) => io::Error::from_raw_os_error(libc::ENOENT),
        procfs::ProcError::Io(e, _) => e,
        other => io::Error::other(other),
    };
    let maps = Process::new(pid).and_then(|p| p.maps()).map_err(gone)?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut found = PagemapRuns::default();
    for map in maps {
        let is_own = map.perms.contains(MMPermissions::PRIVATE);
        // Reserved memory, or the kernel's.
        let is_none = !map.perms.intersects(MMPermissions::READ | MMPermissions::WRITE);
        let is_special = matches!(map.pathname, MMapPath::Vdso | MMapPath::Vvar | MMapPath::Vsyscall);
        let (first, end) = (map.address.0 / PAGE, map.address.1 / PAGE);
        if !is_own || is_none || is_special || end - first > PAGES_MOST {
            continue;
        }
        read_between(&pagemap, first, end, &mut found)?;
    }
    Ok(found.0)
}

/// Does the same for these pages alone.
///
/// # Errors
/// The same as [`read`].
pub fn read_runs(pid: i32, runs: &[PagemapRun]) -> io::Result<Vec<PagemapRun>> {
    read_all(&File::open(format!("/proc/{pid}/pagemap"))?, runs)
}

/// Returns which of these pages, by number, are a process's own, present or evicted: it has written to them. `pagemap`
/// is its `/proc/PID/pagemap`.
///
/// # Errors
/// Returns an error when the process is gone.
pub fn own(pagemap: &File, pages: impl Iterator<Item = u64>) -> io::Result<Vec<u64>> {
    let mut asked = PagemapRuns::default();
    for first in pages {
        asked.add(PagemapRun {
            first,
            pages: 1,
            present: true,
        });
    }
    let found = read_all(pagemap, &asked.0)?;
    Ok(found.iter().flat_map(|run| run.first..run.first + run.pages).collect())
}

/// Returns which of these pages exist.
fn read_all(pagemap: &File, runs: &[PagemapRun]) -> io::Result<Vec<PagemapRun>> {
    let mut found = PagemapRuns::default();
    for run in runs {
        read_between(pagemap, run.first, run.first + run.pages, &mut found)?;
    }
    Ok(found.0)
}

/// Adds the existing pages from `first` to before `end`.
fn read_between(pagemap: &File, first: u64, end: u64, found: &mut PagemapRuns) -> io::Result<()> {
    let mut bytes = [0; 8 * READ];
    for first in (first..end).step_by(READ) {
        let count = (end - first).min(READ as u64) as usize;
        let read = pagemap.read_at(&mut bytes[..8 * count], first * 8)?;
        let entries = bytes[..read]
            .as_chunks()
            .0
            .iter()
            .map(|entry| u64::from_ne_bytes(*entry));
        let runs = (first..).zip(entries).filter_map(|(page, entry)| run(page, entry));
        runs.for_each(|run| found.add(run));
    }
    Ok(())
}

/// Returns the page if it is the process's own, present or evicted. The kernel's zero page is nobody's own.
fn run(page: u64, entry: u64) -> Option<PagemapRun> {
    static ZEROS: LazyLock<Option<u64>> = LazyLock::new(page_of_zeros);
    let is_own = entry & (PRESENT | SWAPPED) != 0 && entry & FILE == 0;
    let is_zeros = entry & PRESENT != 0 && *ZEROS == Some(entry & FRAME);
    let is_own = is_own && !is_zeros;
    is_own.then_some(PagemapRun {
        first: page,
        pages: 1,
        present: entry & PRESENT != 0,
    })
}

/// Returns the frame of the zero page, which backs pages that were read and never written. Returns `None` if it cannot
/// be determined.
fn page_of_zeros() -> Option<u64> {
    let page = MmapMut::map_anon(PAGE as usize).ok()?;
    std::hint::black_box(page[0]);
    let (pagemap, mut entry) = (File::open("/proc/self/pagemap").ok()?, [0; 8]);
    pagemap
        .read_exact_at(&mut entry, page.as_ptr() as u64 / PAGE * 8)
        .ok()?;
    let entry = u64::from_ne_bytes(entry);
    (entry & PRESENT != 0 && entry & FRAME != 0).then_some(entry & FRAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_process_s_own_pages_become_runs() {
        let mut runs = PagemapRuns::default();
        let entries = [
            PRESENT,
            PRESENT | 7,
            SWAPPED,
            0,
            PRESENT,
            PRESENT | FILE,
            SWAPPED | FILE,
            SWAPPED,
        ];
        let found = (10..).zip(entries).filter_map(|(page, entry)| run(page, entry));
        found.for_each(|run| runs.add(run));
        let run = |first, pages, present| PagemapRun { first, pages, present };
        assert_eq!(
            runs.0,
            [run(10, 2, true), run(12, 1, false), run(14, 1, true), run(17, 1, false)]
        );
    }
}
