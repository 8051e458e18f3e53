//! Kernel calls on other processes' memory. PAGEMAP_SCAN (Linux 6.7) finds the pages of their own that are present;
//! without it, they are read page by page ([`crate::host::pagemap`]). `process_madvise(MADV_PAGEOUT)` (Linux 5.10)
//! evicts pages.
//!
//! The kernel refuses `MADV_DONTNEED` for other processes, so a store of the worker's own could not take pages out
//! (docs/decisions/0019-idle-memory.md).
#![expect(
    unsafe_code,
    reason = "two system calls without safe wrappers; neither changes memory that Rust knows of"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use linux_raw_sys::general::{
    PAGE_IS_FILE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, page_region, pm_scan_arg,
};
use rekindle_pager::PAGE;
use rekindle_rewind::scan::{NOTHING, room, scan as scan_pages};

use crate::host::pagemap;
use crate::host::pagemap::{PagemapRun, PagemapRuns};

const PRESENT: u64 = PAGE_IS_PRESENT as u64;
const PRESENT_OR_EVICTED: u64 = PRESENT | PAGE_IS_SWAPPED as u64;
/// Pages of a file, or the kernel's zero page.
const NOT_OWN: u64 = (PAGE_IS_FILE | PAGE_IS_PFNZERO) as u64;
/// End of user memory with four levels of page tables, as far as programs get without asking for more.
const END: u64 = (1 << 47) - PAGE;
/// Maximum number of runs read at once.
const READ: usize = 512;
/// Number of pages scanned at once. Whoever maps or unmaps memory in the process waits that long, 0.4 ms.
const AT_ONCE: u64 = 4_096;
/// Maximum number of ranges in one call (UIO_MAXIOV).
const RANGES_MAX: usize = 1_024;

/// Other processes' memory.
pub trait RemoteMemory {
    /// Returns the memory of a process that it shares with no file, present and evicted, by address. Blocks for about
    /// 25 µs a MiB.
    ///
    /// # Errors
    /// Returns an error when the process is gone, or the kernel refuses.
    fn look(&self, pid: i32) -> io::Result<Vec<PagemapRun>>;

    /// Returns how many of these pages are evicted.
    ///
    /// # Errors
    /// Returns an error when the process is gone, or the kernel refuses.
    fn count_evicted(&self, pid: i32, runs: &[PagemapRun]) -> io::Result<u64>;

    /// Makes the kernel evict these pages, which takes about 5 µs each. Pages that are locked, or shared with a fork,
    /// stay.
    ///
    /// # Errors
    /// Returns an error when the process is gone, or the kernel refuses.
    fn evict(&self, pid: i32, runs: &[PagemapRun]) -> io::Result<()>;
}

/// The host's kernel, used by the interface that it supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostKernel {
    /// One call for a whole process, since Linux 6.7.
    Scans,
    /// An entry for each page.
    Reads,
}

impl HostKernel {
    /// Returns the best interface of this kernel, tried on a page of the worker's own.
    ///
    /// # Errors
    /// Returns a description of what is missing.
    pub fn choose() -> Result<Self, String> {
        match Self::Scans.try_look() {
            Ok(()) => Ok(Self::Scans),
            Err(scans) => match Self::Reads.try_look() {
                Ok(()) => Ok(Self::Reads),
                Err(reads) => Err(format!(
                    "PAGEMAP_SCAN, of Linux 6.7: {scans}; /proc/PID/pagemap: {reads}"
                )),
            },
        }
    }

    fn try_look(self) -> Result<(), String> {
        let page = vec![1_u8; 2 * PAGE as usize];
        let first = (page.as_ptr() as u64).div_ceil(PAGE);
        let runs = self
            .look(std::process::id().cast_signed())
            .map_err(|e| format!("is refused: {e}"))?;
        let is_there = |r: &PagemapRun| r.present && r.first <= first && first < r.first + r.pages;
        let found = runs.iter().any(is_there);
        drop(page);
        if found {
            Ok(())
        } else {
            Err("does not find a page that is there".to_owned())
        }
    }
}

impl RemoteMemory for HostKernel {
    fn look(&self, pid: i32) -> io::Result<Vec<PagemapRun>> {
        match self {
            Self::Scans => scan(pid),
            Self::Reads => pagemap::read(pid),
        }
    }

    fn count_evicted(&self, pid: i32, runs: &[PagemapRun]) -> io::Result<u64> {
        let found = match self {
            Self::Scans => {
                let mut scan = Scan::of(pid)?;
                for run in runs {
                    scan.between(run.first * PAGE, (run.first + run.pages) * PAGE)?;
                }
                scan.found.0
            }
            Self::Reads => pagemap::read_runs(pid, runs)?,
        };
        Ok(found.iter().filter(|run| !run.present).map(|run| run.pages).sum())
    }

    fn evict(&self, pid: i32, runs: &[PagemapRun]) -> io::Result<()> {
        evict(pid, runs)
    }
}

fn scan(pid: i32) -> io::Result<Vec<PagemapRun>> {
    let mut scan = Scan::of(pid)?;
    scan.between(0, END)?;
    Ok(scan.found.0)
}

/// A process being scanned, and the pages of its own found so far.
struct Scan {
    pagemap: File,
    regions: Vec<page_region>,
    found: PagemapRuns,
}

impl Scan {
    fn of(pid: i32) -> io::Result<Self> {
        Ok(Self {
            pagemap: File::open(format!("/proc/{pid}/pagemap"))?,
            regions: room(READ),
            found: PagemapRuns::default(),
        })
    }

    /// Adds the pages between these addresses. The kernel reports pages of files too, which are left out here: they
    /// count towards the number of pages reported at once.
    fn between(&mut self, mut start: u64, end: u64) -> io::Result<()> {
        while start < end {
            let mut asked = pm_scan_arg {
                start,
                end,
                max_pages: AT_ONCE,
                category_anyof_mask: PRESENT_OR_EVICTED,
                return_mask: PRESENT_OR_EVICTED | NOT_OWN,
                ..NOTHING
            };
            let regions = scan_pages(&self.pagemap, &mut asked, &mut self.regions)?;
            for region in regions.iter().filter(|r| r.categories & NOT_OWN == 0) {
                self.found.add(PagemapRun {
                    first: region.start / PAGE,
                    pages: (region.end - region.start) / PAGE,
                    present: region.categories & PRESENT != 0,
                });
            }
            if asked.walk_end <= start {
                break;
            }
            start = asked.walk_end;
        }
        Ok(())
    }
}

/// Makes the kernel evict these pages of a process, see [`RemoteMemory::evict`].
///
/// # Errors
/// Returns an error when the process is gone, or the kernel refuses.
pub fn evict(pid: i32, runs: &[PagemapRun]) -> io::Result<()> {
    let process = pidfd(pid)?;
    for runs in runs.chunks(RANGES_MAX) {
        let mut left = runs;
        while !left.is_empty() {
            let done = advise(&process, left, libc::MADV_PAGEOUT)?;
            // The kernel stops at the first range that cannot be evicted, such as one that was unmapped meanwhile or is
            // locked. Continue after it.
            left = left.get(done + 1..).unwrap_or_default();
        }
    }
    Ok(())
}

fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number and flags; no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Advises the kernel on ranges of a process. Returns how many were processed completely.
fn advise(process: &OwnedFd, runs: &[PagemapRun], advice: i32) -> io::Result<usize> {
    let ranges: Vec<libc::iovec> = runs
        .iter()
        .map(|run| libc::iovec {
            iov_base: (run.first * PAGE) as *mut libc::c_void,
            iov_len: (run.pages * PAGE) as usize,
        })
        .collect();
    let (fd, at, count) = (process.as_raw_fd(), ranges.as_ptr(), ranges.len());
    // SAFETY: `count` ranges at `at` outlive the call. Their addresses are in another process, and the contents of its
    // pages do not change.
    let advised = unsafe { libc::syscall(libc::SYS_process_madvise, fd, at, count, advice, 0) };
    if advised >= 0 {
        let mut bytes = advised as u64;
        let whole = |run: &&PagemapRun| {
            let fits = bytes >= run.pages * PAGE;
            bytes = bytes.saturating_sub(run.pages * PAGE);
            fits
        };
        return Ok(runs.iter().take_while(whole).count());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // These errors concern the very first range.
        Some(libc::EINVAL | libc::ENOMEM | libc::EBUSY) if advice == libc::MADV_PAGEOUT => Ok(0),
        _ => Err(error),
    }
}

/// Returns the interface of this kernel, if there is one and it evicts on request.
///
/// # Errors
/// Returns a description of what is missing.
pub fn probe() -> Result<HostKernel, String> {
    let host = HostKernel::choose()?;
    let page = vec![1_u8; 2 * PAGE as usize];
    let run = PagemapRun {
        first: (page.as_ptr() as u64).div_ceil(PAGE),
        pages: 1,
        present: true,
    };
    let process = pidfd(std::process::id().cast_signed()).map_err(|e| format!("pidfd_open is refused: {e}"))?;
    let advised = advise(&process, &[run], libc::MADV_COLD);
    drop(page);
    advised
        .map(|_| host)
        .map_err(|e| format!("process_madvise, of Linux 5.10, is refused: {e}"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_kernel_tells_and_takes_advice() {
        assert!(probe().is_ok());
        assert_eq!(HostKernel::Reads.try_look(), Ok(()));
    }

    #[test]
    fn another_process_s_pages_are_found_and_cannot_be_thrown_away() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let host = HostKernel::choose().unwrap();
        let own = host.look(pid).unwrap();
        assert!(own.iter().any(|run| run.present), "{own:?}");
        assert!(own.windows(2).all(|w| w[0].first + w[0].pages <= w[1].first));
        let refused = advise(&pidfd(pid).unwrap(), &own[..1], libc::MADV_DONTNEED).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        host.evict(pid, &own).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        for host in [HostKernel::Scans, HostKernel::Reads] {
            let error = host.look(pid).unwrap_err();
            assert!(
                matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
                "{host:?}: {error}"
            );
        }
    }

    #[test]
    fn both_ways_find_the_same_pages() {
        let Ok(HostKernel::Scans) = HostKernel::choose() else {
            return;
        };
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id().cast_signed();
        // Until the process sleeps, its memory changes.
        let is_asleep =
            || std::fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|at| at.contains("nanosleep"));
        for _ in 0..1_000 {
            if is_asleep() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let (scanned, read) = (
            HostKernel::Scans.look(pid).unwrap(),
            HostKernel::Reads.look(pid).unwrap(),
        );
        let out = [HostKernel::Scans, HostKernel::Reads].map(|host| host.count_evicted(pid, &scanned).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(scanned, read);
        let evicted: u64 = scanned.iter().filter(|r| !r.present).map(|r| r.pages).sum();
        assert_eq!(out, [evicted; 2]);
    }
}
