//! One process's userfaultfd. Every ioctl on it is made here. Results that the kernel may normally return are outcomes,
//! not errors.
#![expect(
    unsafe_code,
    reason = "userfaultfd's ioctls take addresses of another process's memory"
)]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use userfaultfd::{Error as UffdError, Event, EventBuffer, ReadWrite, RegisterMode, Uffd};

use crate::PAGE;
use crate::address_map::AddressMap;
use crate::streams::Streams;

/// An address that is never registered: the lowest that may be mapped.
const PROBE: u64 = 0x10000;

/// Outcome of an attempt to fill pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// This many pages were filled and their waiters woken.
    Pages(u64),
    /// The first page was already present. Its waiters were woken.
    AlreadyPresent,
    /// The process is changing its mappings: read its events, then retry.
    Changing,
    /// No registered mapping exists there any more. Waiters were woken.
    Unmapped,
    /// The process is dead.
    ProcessGone,
    /// The mapped file does not have the page, or not any more.
    NotInFile,
    /// The kernel has no memory for the page, because of the process's own limit or on the host.
    NoMemory,
    /// The kernel refuses for an unexpected reason.
    Refused(i32),
}

/// A pending page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Page number.
    pub page: u64,
    /// Whether it is a write access.
    pub write: bool,
}

/// A change that the process made to its mappings.
#[derive(Debug)]
pub enum Happened {
    /// It freed these pages, which are still mapped.
    Freed {
        /// First page number.
        start: u64,
        /// Page number after the last.
        end: u64,
    },
    /// It unmapped these pages.
    Unmapped {
        /// First page number.
        start: u64,
        /// Page number after the last.
        end: u64,
    },
    /// It moved pages.
    Moved {
        /// First page number before the move.
        from: u64,
        /// First page number after the move.
        to: u64,
        /// Number of pages.
        count: u64,
    },
    /// It forked. The userfaultfd is for the child's memory.
    Forked(OwnedFd),
}

/// A process's memory as seen by the pager.
#[derive(Debug)]
pub struct Memory {
    /// Unique among all memories of its pager, past ones included.
    pub key: u64,
    /// Process id at the checkpoint. For a child forked later, the id of the ancestor whose snapshot it shares.
    pub pid: i32,
    /// What belongs to the snapshot. A forked child shares the map until one of the two changes its memory.
    pub map: Arc<AddressMap>,
    /// Sequential reads in this memory.
    pub(crate) streams: Streams,
    uffd: Uffd,
}

impl Memory {
    /// Takes over a userfaultfd.
    pub fn new(key: u64, pid: i32, fd: OwnedFd, map: Arc<AddressMap>) -> Self {
        // SAFETY: `fd` is an owned userfaultfd, and ownership is given up here.
        let uffd = unsafe { Uffd::from_raw_fd(fd.into_raw_fd()) };
        Self {
            key,
            pid,
            map,
            streams: Streams::default(),
            uffd,
        }
    }

    /// The descriptor, for polling.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` exists.
        unsafe { BorrowedFd::borrow_raw(self.uffd.as_raw_fd()) }
    }

    /// Reads pending events without waiting. Faults are kept apart from other events.
    ///
    /// # Errors
    /// If the descriptor cannot be read any more.
    pub fn read(
        &self,
        buffer: &mut EventBuffer,
        happened: &mut Vec<Happened>,
        faults: &mut Vec<Fault>,
    ) -> Result<(), UffdError> {
        let page = |address: *mut c_void| address as u64 / PAGE;
        for event in self.uffd.read_events(buffer)? {
            happened.push(match event? {
                Event::Pagefault { addr, rw, .. } => {
                    faults.push(Fault {
                        page: page(addr),
                        write: rw == ReadWrite::Write,
                    });
                    continue;
                }
                Event::Remove { start, end } => Happened::Freed {
                    start: page(start),
                    end: page(end),
                },
                Event::Unmap { start, end } => Happened::Unmapped {
                    start: page(start),
                    end: page(end),
                },
                Event::Remap { from, to, len } => Happened::Moved {
                    from: page(from),
                    to: page(to),
                    count: len as u64 / PAGE,
                },
                Event::Fork { uffd } => {
                    // Not `into_raw_fd`: in userfaultfd 0.9 that closes the returned descriptor.
                    let uffd = ManuallyDrop::new(uffd);
                    // SAFETY: ownership of the descriptor passes from one wrapper to the other. The former is not
                    // dropped.
                    Happened::Forked(unsafe { OwnedFd::from_raw_fd(uffd.as_raw_fd()) })
                }
            });
        }
        Ok(())
    }

    /// Registers a private file mapping for faults: both on pages that the file lacks and on pages that it has.
    ///
    /// # Errors
    /// If the kernel refuses. The mapping must not be touched then.
    pub fn register_mapped(&self, page: u64, count: u64) -> Result<(), UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        let mode = RegisterMode::MISSING | RegisterMode::MINOR;
        self.uffd.register_with_mode(start, length, mode).map(drop)
    }

    /// Registers anonymous memory for faults on missing pages.
    ///
    /// # Errors
    /// If the kernel refuses. The memory must not be touched then.
    pub fn register_anonymous(&self, page: u64, count: u64) -> Result<(), UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        self.uffd
            .register_with_mode(start, length, RegisterMode::MISSING)
            .map(drop)
    }

    /// Leaves a range to the kernel. No thread may be waiting for a page in it.
    ///
    /// # Errors
    /// If the kernel refuses. Faults are then still reported here.
    pub fn unregister(&self, page: u64, count: u64) -> Result<(), UffdError> {
        self.uffd
            .unregister((page * PAGE) as *mut c_void, (count * PAGE) as usize)
    }

    /// Lets in `count` pages from `page` on, which the mapped file has.
    pub fn let_in(&self, page: u64, count: u64) -> Filled {
        self.woken(page, self.r#continue(page, count, true))
    }

    /// Like `Self::let_in`, without waking waiters. For pages without known waiters.
    pub fn let_in_quietly(&self, page: u64, count: u64) -> Filled {
        outcome(self.r#continue(page, count, false))
    }

    fn r#continue(&self, page: u64, count: u64, wake: bool) -> Result<usize, UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        self.uffd.r#continue(start, length, wake).map(|bytes| bytes as usize)
    }

    /// Fills pages from `page` on with `bytes`, whose length is a positive multiple of 4096.
    pub fn copy(&self, page: u64, bytes: &[u8]) -> Filled {
        debug_assert!(!bytes.is_empty() && (bytes.len() as u64).is_multiple_of(PAGE));
        let (to, from) = ((page * PAGE) as *mut c_void, bytes.as_ptr().cast());
        // SAFETY: the kernel only reads `bytes`, which outlives the call, and only writes to missing pages of the
        // process that registered them.
        let result = unsafe { self.uffd.copy(from, to, bytes.len(), true) };
        self.woken(page, result)
    }

    /// Fills `count` pages from `page` on with zeros.
    pub fn zero(&self, page: u64, count: u64) -> Filled {
        self.woken(page, self.zeropage(page, count, true))
    }

    /// Like `Self::zero`, without waking waiters. For pages without known waiters.
    pub fn zero_quietly(&self, page: u64, count: u64) -> Filled {
        outcome(self.zeropage(page, count, false))
    }

    fn zeropage(&self, page: u64, count: u64, wake: bool) -> Result<usize, UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        // SAFETY: the kernel only writes to missing pages of the process that registered them.
        unsafe { self.uffd.zeropage(start, length, wake) }
    }

    /// The outcome. If there was nothing to fill, waiters are woken so that they look again.
    fn woken(&self, page: u64, result: Result<usize, UffdError>) -> Filled {
        let filled = outcome(result);
        if matches!(filled, Filled::AlreadyPresent | Filled::Unmapped) {
            self.wake(page);
        }
        filled
    }

    /// Makes waiters of a present page look again.
    pub fn look_again(&self, page: u64) -> Filled {
        self.wake(page);
        Filled::AlreadyPresent
    }

    fn wake(&self, page: u64) {
        // A failure means that the process is dead, so there are no waiters.
        let _ = self.uffd.wake((page * PAGE) as *mut c_void, PAGE as usize);
    }

    /// Whether the process still has its memory.
    pub fn is_alive(&self) -> bool {
        // SAFETY: nothing is registered at this address, so nothing is filled. Only the error matters.
        let result = unsafe { self.uffd.zeropage(PROBE as *mut c_void, PAGE as usize, false) };
        !matches!(result, Err(UffdError::ZeropageFailed(e) | UffdError::SystemError(e)) if e as i32 == libc::ESRCH)
    }
}

/// The meaning of the kernel's result of COPY, CONTINUE or ZEROPAGE, by `ioctl_userfaultfd(2)` and the kernel's own
/// code.
fn outcome(result: Result<usize, UffdError>) -> Filled {
    let errno = match result {
        // The kernel may report the error itself as a negative count.
        Ok(bytes) | Err(UffdError::PartiallyCopied(bytes)) if bytes.cast_signed() > 0 => {
            return Filled::Pages(bytes as u64 / PAGE);
        }
        Ok(_) | Err(UffdError::PartiallyCopied(_)) => libc::EAGAIN,
        Err(UffdError::CopyFailed(e) | UffdError::ZeropageFailed(e) | UffdError::SystemError(e)) => e as i32,
        Err(_) => libc::EINVAL,
    };
    meaning(errno)
}

fn meaning(errno: i32) -> Filled {
    match errno {
        libc::EAGAIN => Filled::Changing,
        libc::EEXIST => Filled::AlreadyPresent,
        // ENOSPC: returned by kernels before 4.13 if the process has exited.
        libc::ESRCH | libc::ENOSPC => Filled::ProcessGone,
        libc::EFAULT => Filled::NotInFile,
        libc::ENOMEM => Filled::NoMemory,
        // ENOENT: no such mapping. EINVAL: no longer a mapping of this kind.
        libc::ENOENT | libc::EINVAL => Filled::Unmapped,
        other => Filled::Refused(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_documents_is_an_outcome() {
        let cases = [
            (libc::EAGAIN, Filled::Changing),
            (libc::EEXIST, Filled::AlreadyPresent),
            (libc::ENOENT, Filled::Unmapped),
            (libc::EINVAL, Filled::Unmapped),
            (libc::ESRCH, Filled::ProcessGone),
            (libc::ENOSPC, Filled::ProcessGone),
            (libc::EFAULT, Filled::NotInFile),
            (libc::ENOMEM, Filled::NoMemory),
            (libc::EPERM, Filled::Refused(libc::EPERM)),
        ];
        for (errno, expected) in cases {
            assert_eq!(meaning(errno), expected);
        }
    }

    #[test]
    fn a_part_that_was_filled_counts() {
        let pages = |n: u64| (n * PAGE) as usize;
        assert_eq!(outcome(Ok(pages(3))), Filled::Pages(3));
        assert_eq!(outcome(Err(UffdError::PartiallyCopied(pages(2)))), Filled::Pages(2));
        // The kernel writes its error in the place of the count.
        let error = usize::MAX - 10;
        assert_eq!(outcome(Err(UffdError::PartiallyCopied(error))), Filled::Changing);
    }
}
