//! One process's userfaultfd. Every ioctl on it is made here, and what the kernel may normally answer is an outcome, not an
//! error.
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

/// An address that is never registered: the lowest that may be mapped at all.
const PROBE: u64 = 0x10000;

/// What became of an attempt to fill pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// So many pages were filled and their waiters woken.
    Pages(u64),
    /// The first page was there already; its waiters were woken.
    AlreadyPresent,
    /// The process is changing its mappings: read its events, then try again.
    Changing,
    /// No registered mapping is there any more; waiters were woken.
    Unmapped,
    /// The process is gone.
    ProcessGone,
    /// The mapped file has no such page (any more).
    NotInFile,
    /// The kernel has no memory for the page, in the process's own limit or on the host.
    NoMemory,
    /// The kernel refuses for a reason that should not be.
    Refused(i32),
}

/// A touch that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Page number.
    pub page: u64,
    /// Whether it is a write.
    pub write: bool,
}

/// Something the process did to its mappings.
#[derive(Debug)]
pub enum Happened {
    /// It gave up what these pages held; they are still mapped.
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
        /// First page number before.
        from: u64,
        /// First page number after.
        to: u64,
        /// How many pages.
        count: u64,
    },
    /// It forked: the child's memory.
    Forked(OwnedFd),
}

/// A process's memory as the pager sees it.
#[derive(Debug)]
pub struct Memory {
    /// Tells it from all others of its pager, past ones included.
    pub key: u64,
    /// Process id at the checkpoint; of a child made later, that of the ancestor whose snapshot it shares.
    pub pid: i32,
    /// What belongs to the snapshot. A forked child shares it until one of the two changes its memory.
    pub map: Arc<AddressMap>,
    /// Where it is read from front to back.
    pub(crate) streams: Streams,
    uffd: Uffd,
}

impl Memory {
    /// Takes over a userfaultfd.
    pub fn new(key: u64, pid: i32, fd: OwnedFd, map: Arc<AddressMap>) -> Self {
        // SAFETY: `fd` is a userfaultfd, owned, and given up here.
        let uffd = unsafe { Uffd::from_raw_fd(fd.into_raw_fd()) };
        Self {
            key,
            pid,
            map,
            streams: Streams::default(),
            uffd,
        }
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as `self` is.
        unsafe { BorrowedFd::borrow_raw(self.uffd.as_raw_fd()) }
    }

    /// Reads what happened, without waiting: faults apart from other events.
    ///
    /// # Errors
    /// When the descriptor cannot be read any more.
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
                    // Not `into_raw_fd`: in userfaultfd 0.9 that closes the descriptor it gives.
                    let uffd = ManuallyDrop::new(uffd);
                    // SAFETY: the descriptor's ownership goes from one wrapper to the other, which is not dropped.
                    Happened::Forked(unsafe { OwnedFd::from_raw_fd(uffd.as_raw_fd()) })
                }
            });
        }
        Ok(())
    }

    /// Takes the faults on a private mapping of a file: on pages the file lacks and on those it has.
    ///
    /// # Errors
    /// When the kernel refuses; the mapping must not be touched then.
    pub fn register_mapped(&self, page: u64, count: u64) -> Result<(), UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        let mode = RegisterMode::MISSING | RegisterMode::MINOR;
        self.uffd.register_with_mode(start, length, mode).map(drop)
    }

    /// Takes the faults on anonymous memory: on pages that are not there.
    ///
    /// # Errors
    /// When the kernel refuses; the memory must not be touched then.
    pub fn register_anonymous(&self, page: u64, count: u64) -> Result<(), UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        self.uffd
            .register_with_mode(start, length, RegisterMode::MISSING)
            .map(drop)
    }

    /// Leaves a range to the kernel. Nobody may wait for a page of it.
    ///
    /// # Errors
    /// When the kernel refuses; faults then still come here.
    pub fn unregister(&self, page: u64, count: u64) -> Result<(), UffdError> {
        self.uffd
            .unregister((page * PAGE) as *mut c_void, (count * PAGE) as usize)
    }

    /// Lets in `count` pages from `page` on that the mapped file has.
    pub fn let_in(&self, page: u64, count: u64) -> Filled {
        self.woken(page, self.r#continue(page, count, true))
    }

    /// The same, of pages that nobody is known to wait for.
    pub fn let_in_quietly(&self, page: u64, count: u64) -> Filled {
        outcome(self.r#continue(page, count, false))
    }

    fn r#continue(&self, page: u64, count: u64, wake: bool) -> Result<usize, UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        self.uffd.r#continue(start, length, wake).map(|bytes| bytes as usize)
    }

    /// Fills pages from `page` on with `bytes`, a positive multiple of 4096 long.
    pub fn copy(&self, page: u64, bytes: &[u8]) -> Filled {
        debug_assert!(!bytes.is_empty() && (bytes.len() as u64).is_multiple_of(PAGE));
        let (to, from) = ((page * PAGE) as *mut c_void, bytes.as_ptr().cast());
        // SAFETY: the kernel only reads `bytes`, which outlives the call, and writes only to missing pages of the process
        // that registered them.
        let result = unsafe { self.uffd.copy(from, to, bytes.len(), true) };
        self.woken(page, result)
    }

    /// Fills `count` pages from `page` on with zero.
    pub fn zero(&self, page: u64, count: u64) -> Filled {
        self.woken(page, self.zeropage(page, count, true))
    }

    /// The same, of pages that nobody is known to wait for.
    pub fn zero_quietly(&self, page: u64, count: u64) -> Filled {
        outcome(self.zeropage(page, count, false))
    }

    fn zeropage(&self, page: u64, count: u64, wake: bool) -> Result<usize, UffdError> {
        let (start, length) = ((page * PAGE) as *mut c_void, (count * PAGE) as usize);
        // SAFETY: the kernel writes only to missing pages of the process that registered them.
        unsafe { self.uffd.zeropage(start, length, wake) }
    }

    /// The outcome; where nothing was filled because there is nothing to fill, whoever waits is woken, to look again.
    fn woken(&self, page: u64, result: Result<usize, UffdError>) -> Filled {
        let filled = outcome(result);
        if matches!(filled, Filled::AlreadyPresent | Filled::Unmapped) {
            self.wake(page);
        }
        filled
    }

    /// Has whoever waits for the page, which is there, look again.
    pub fn look_again(&self, page: u64) -> Filled {
        self.wake(page);
        Filled::AlreadyPresent
    }

    fn wake(&self, page: u64) {
        // A failure means that the process is gone, and then nobody waits.
        let _ = self.uffd.wake((page * PAGE) as *mut c_void, PAGE as usize);
    }

    /// Whether the process still has its memory.
    pub fn is_alive(&self) -> bool {
        // SAFETY: nothing is registered at this address, so nothing is filled; only the error tells.
        let result = unsafe { self.uffd.zeropage(PROBE as *mut c_void, PAGE as usize, false) };
        !matches!(result, Err(UffdError::ZeropageFailed(e) | UffdError::SystemError(e)) if e as i32 == libc::ESRCH)
    }
}

/// What the kernel's answer to a COPY, CONTINUE or ZEROPAGE means, by `ioctl_userfaultfd(2)` and the kernel's own code.
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
        // ENOSPC: so said kernels before 4.13 of a process that has exited.
        libc::ESRCH | libc::ENOSPC => Filled::ProcessGone,
        libc::EFAULT => Filled::NotInFile,
        libc::ENOMEM => Filled::NoMemory,
        // ENOENT: no such mapping; EINVAL: not a mapping of this kind any more.
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
        // The kernel writes its error where the count belongs.
        let error = usize::MAX - 10;
        assert_eq!(outcome(Err(UffdError::PartiallyCopied(error))), Filled::Changing);
    }
}
