//! What the kernel is asked of other processes' memory: which pages of their own are there, by PAGEMAP_SCAN (Linux 6.7), and to evict some, by
//! `process_madvise(MADV_PAGEOUT)` (Linux 5.10). `MADV_DONTNEED` it refuses for others, so that a store of our own could not take the pages
//! out (docs/decisions/0019-idle-memory.md).
#![expect(
    unsafe_code,
    reason = "an ioctl and two system calls without safe wrappers; none changes memory that Rust knows of"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use rekindle_pager::PAGE;

use super::policy::Run;

const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// Where user memory ends with four levels of page tables, as far as programs get without asking for more.
const END: u64 = (1 << 47) - PAGE;
/// Runs that are read at once.
const READ: usize = 512;
/// Ranges that one call takes (UIO_MAXIOV).
const RANGES_MAX: usize = 1_024;

/// Other processes' memory.
pub trait Memory {
    /// The memory of a process that it shares with no file: what is there, and what is evicted, by address. Blocks for about 25 µs a MiB.
    ///
    /// # Errors
    /// When it is gone, or the kernel refuses.
    fn look(&self, pid: i32) -> io::Result<Vec<Run>>;

    /// Has the kernel evict these pages, which takes about 5 µs each. What is locked, or shared with a fork, stays.
    ///
    /// # Errors
    /// When the process is gone, or the kernel refuses.
    fn evict(&self, pid: i32, runs: &[Run]) -> io::Result<()>;
}

/// The host's own kernel.
#[derive(Debug, Clone, Copy)]
pub struct Host;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

impl Memory for Host {
    fn look(&self, pid: i32) -> io::Result<Vec<Run>> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let mut found = Vec::new();
        let mut regions = vec![Region::default(); READ];
        let mut start = 0;
        while start < END {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                start,
                end: END,
                vec: regions.as_mut_ptr() as u64,
                vec_len: READ as u64,
                category_inverted: PAGE_IS_FILE | PAGE_IS_PFNZERO,
                category_mask: PAGE_IS_FILE | PAGE_IS_PFNZERO,
                category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                ..ScanArg::default()
            };
            // SAFETY: the kernel reads and writes `arg`, and at most `vec_len` regions at `vec`; both outlive the call.
            let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
            found.extend(regions.iter().take(count).map(|region| Run {
                first: region.start / PAGE,
                pages: (region.end - region.start) / PAGE,
                present: region.categories & PAGE_IS_PRESENT != 0,
            }));
            if arg.walk_end <= start {
                break;
            }
            start = arg.walk_end;
        }
        Ok(found)
    }

    fn evict(&self, pid: i32, runs: &[Run]) -> io::Result<()> {
        let process = pidfd(pid)?;
        for runs in runs.chunks(RANGES_MAX) {
            let mut left = runs;
            while !left.is_empty() {
                let done = advise(&process, left, libc::MADV_PAGEOUT)?;
                // It stops at the first range that cannot go, such as one that was unmapped meanwhile or is locked: on behind it.
                left = left.get(done + 1..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes a number and flags; no memory is handed over.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Advises the kernel of ranges of a process; answers how many were done whole.
fn advise(process: &OwnedFd, runs: &[Run], advice: i32) -> io::Result<usize> {
    let ranges: Vec<libc::iovec> = runs
        .iter()
        .map(|run| libc::iovec {
            iov_base: (run.first * PAGE) as *mut libc::c_void,
            iov_len: (run.pages * PAGE) as usize,
        })
        .collect();
    let (fd, at, count) = (process.as_raw_fd(), ranges.as_ptr(), ranges.len());
    // SAFETY: `count` ranges at `at` outlive the call; their addresses are another process's, whose pages stay as they are to it.
    let advised = unsafe { libc::syscall(libc::SYS_process_madvise, fd, at, count, advice, 0) };
    if advised >= 0 {
        let mut bytes = advised as u64;
        let whole = |run: &&Run| {
            let fits = bytes >= run.pages * PAGE;
            bytes = bytes.saturating_sub(run.pages * PAGE);
            fits
        };
        return Ok(runs.iter().take_while(whole).count());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Of the very first range.
        Some(libc::EINVAL | libc::ENOMEM | libc::EBUSY) if advice == libc::MADV_PAGEOUT => Ok(0),
        _ => Err(error),
    }
}

/// Whether this kernel can do it, tried on a page of our own.
///
/// # Errors
/// What lacks, to be told.
pub fn probe() -> Result<(), String> {
    let page = vec![1_u8; 2 * PAGE as usize];
    let own = std::process::id().cast_signed();
    let first = (page.as_ptr() as u64).div_ceil(PAGE);
    let runs = Host
        .look(own)
        .map_err(|e| format!("PAGEMAP_SCAN, of Linux 6.7, is refused: {e}"))?;
    let there = runs
        .iter()
        .any(|r| r.present && r.first <= first && first < r.first + r.pages);
    if !there {
        return Err("PAGEMAP_SCAN does not find a page that is there".to_owned());
    }
    let run = Run {
        first,
        pages: 1,
        present: true,
    };
    let process = pidfd(own).map_err(|e| format!("pidfd_open is refused: {e}"))?;
    let advised = advise(&process, &[run], libc::MADV_COLD);
    drop(page);
    advised
        .map(drop)
        .map_err(|e| format!("process_madvise, of Linux 5.10, is refused: {e}"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_scan_has_the_size_that_its_ioctl_number_carries() {
        assert_eq!(size_of::<ScanArg>() as u64, (PAGEMAP_SCAN >> 16) & 0x3fff);
    }

    #[test]
    fn this_kernel_tells_and_takes_advice() {
        assert_eq!(probe(), Ok(()));
    }

    #[test]
    fn another_process_s_pages_are_found_and_cannot_be_thrown_away() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let own = Host.look(pid).unwrap();
        assert!(own.iter().any(|run| run.present), "{own:?}");
        assert!(own.windows(2).all(|w| w[0].first + w[0].pages <= w[1].first));
        let refused = advise(&pidfd(pid).unwrap(), &own[..1], libc::MADV_DONTNEED).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        Host.evict(pid, &own).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Host.look(pid).is_err());
    }
}
