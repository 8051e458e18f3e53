//! A userfaultfd: its ioctls and its events, with the kernel's own structures (`ioctl_userfaultfd(2)`).
#![expect(
    unsafe_code,
    reason = "userfaultfd's ioctls take addresses of another process's memory"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use linux_raw_sys::general::{
    UFFD_API, UFFD_EVENT_FORK, UFFD_EVENT_PAGEFAULT, UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE, UFFD_EVENT_UNMAP,
    UFFD_FEATURE_EVENT_FORK, UFFD_FEATURE_EVENT_REMAP, UFFD_FEATURE_EVENT_REMOVE, UFFD_FEATURE_EVENT_UNMAP,
    UFFD_PAGEFAULT_FLAG_WRITE, UFFDIO_REGISTER_MODE_MINOR, UFFDIO_REGISTER_MODE_MISSING, UFFDIO_ZEROPAGE_MODE_DONTWAKE,
    uffd_msg, uffdio_api, uffdio_continue, uffdio_copy, uffdio_range, uffdio_register, uffdio_zeropage,
};
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_CONTINUE, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_ZEROPAGE,
};
use nix::errno::Errno;

use crate::PAGE;

/// Fork, remap, remove and unmap events, the same that CRIU requests. Children inherit them.
const EVENTS: u32 =
    UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;
/// `UFFDIO_CONTINUE_MODE_DONTWAKE`.
const CONTINUE_MODE_DONTWAKE: u32 = 1;
const MESSAGE: usize = size_of::<uffd_msg>();

/// Room for the events of one read.
#[derive(Debug)]
pub struct EventBuffer(Vec<u8>);

impl EventBuffer {
    /// Room for `events`.
    pub fn new(events: usize) -> Self {
        Self(vec![0; events * MESSAGE])
    }
}

/// A pending page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Page number (address / 4096).
    pub page: u64,
    /// Whether it is a write access.
    pub write: bool,
}

/// A change that the process made to its mappings.
#[derive(Debug)]
pub enum MappingChange {
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
    Forked(Userfault),
}

/// Which faults are reported of a range.
#[derive(Debug, Clone, Copy)]
pub enum Register {
    /// Those on missing pages.
    Missing,
    /// Those on missing pages, and on pages that the mapped file has.
    MissingAndMinor,
}

/// The userfaultfd of one process's memory. Ranges are in pages.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl From<OwnedFd> for Userfault {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Userfault {
    /// A new one for this process's own memory, close-on-exec and non-blocking, without events so far. Needs root.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn create() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = RawFd::try_from(Errno::result(made)?).map_err(io::Error::other)?;
        // SAFETY: a new descriptor, owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Negotiates the events of a fresh userfaultfd. Only the host's root may request fork events, whatever memory the
    /// userfaultfd belongs to.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn agree_on_events(&self) -> io::Result<()> {
        let mut agreement = uffdio_api {
            api: UFFD_API.into(),
            features: EVENTS.into(),
            ioctls: 0,
        };
        Ok(self.ioctl(UFFDIO_API, &mut agreement)?)
    }

    /// Registers a range for faults.
    ///
    /// # Errors
    /// If the kernel refuses. The range must not be touched then.
    pub fn register(&self, page: u64, count: u64, faults: Register) -> Result<(), Errno> {
        let mode = match faults {
            Register::Missing => UFFDIO_REGISTER_MODE_MISSING,
            Register::MissingAndMinor => UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR,
        };
        let mut register = uffdio_register {
            range: range(page, count),
            mode: mode.into(),
            ioctls: 0,
        };
        self.ioctl(UFFDIO_REGISTER, &mut register)
    }

    /// Leaves a range to the kernel again.
    pub(crate) fn unregister(&self, page: u64, count: u64) -> Result<(), Errno> {
        self.ioctl(UFFDIO_UNREGISTER, &mut range(page, count))
    }

    /// Makes waiters of a page look again.
    pub(crate) fn wake(&self, page: u64) -> Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut range(page, 1))
    }

    /// Fills missing pages from `page` on with `bytes`, and wakes waiters. Returns the number of bytes filled.
    pub(crate) fn copy(&self, page: u64, bytes: &[u8]) -> Result<u64, Errno> {
        let mut copy = uffdio_copy {
            dst: page * PAGE,
            // The kernel only reads `bytes`, which outlives the call.
            src: bytes.as_ptr() as u64,
            len: bytes.len() as u64,
            mode: 0,
            copy: 0,
        };
        let done = self.ioctl(UFFDIO_COPY, &mut copy);
        filled(done, copy.copy)
    }

    /// Fills missing pages with zeros. Returns the number of bytes filled.
    pub(crate) fn zero(&self, page: u64, count: u64, wake: bool) -> Result<u64, Errno> {
        let mut zero = uffdio_zeropage {
            range: range(page, count),
            mode: if wake { 0 } else { UFFDIO_ZEROPAGE_MODE_DONTWAKE.into() },
            zeropage: 0,
        };
        let done = self.ioctl(UFFDIO_ZEROPAGE, &mut zero);
        filled(done, zero.zeropage)
    }

    /// Lets in pages that the mapped file has. Returns the number of bytes let in.
    pub(crate) fn let_in(&self, page: u64, count: u64, wake: bool) -> Result<u64, Errno> {
        let mut through = uffdio_continue {
            range: range(page, count),
            mode: if wake { 0 } else { CONTINUE_MODE_DONTWAKE.into() },
            mapped: 0,
        };
        let done = self.ioctl(UFFDIO_CONTINUE, &mut through);
        filled(done, through.mapped)
    }

    /// Reads pending events without waiting.
    ///
    /// # Errors
    /// If the descriptor cannot be read any more, or the kernel sends an event that was not agreed on.
    pub(crate) fn read(
        &self,
        buffer: &mut EventBuffer,
        happened: &mut Vec<MappingChange>,
        faults: &mut Vec<Fault>,
    ) -> io::Result<()> {
        let read = match nix::unistd::read(&self.0, &mut buffer.0) {
            Err(Errno::EAGAIN) => return Ok(()),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => read?,
        };
        for message in buffer.0[..read].chunks_exact(MESSAGE) {
            // `struct uffd_msg`: the event in the first byte, and from the eighth on up to three words.
            let word = |n: usize| u64::from_ne_bytes(std::array::from_fn(|at| message[8 + 8 * n + at]));
            happened.push(match u32::from(message[0]) {
                UFFD_EVENT_PAGEFAULT => {
                    faults.push(Fault {
                        page: word(1) / PAGE,
                        write: word(0) & u64::from(UFFD_PAGEFAULT_FLAG_WRITE) != 0,
                    });
                    continue;
                }
                UFFD_EVENT_FORK => {
                    let fd = RawFd::from_ne_bytes(std::array::from_fn(|at| message[8 + at]));
                    // SAFETY: the kernel has made this descriptor for whoever reads the event.
                    MappingChange::Forked(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
                }
                UFFD_EVENT_REMAP => MappingChange::Moved {
                    from: word(0) / PAGE,
                    to: word(1) / PAGE,
                    count: word(2) / PAGE,
                },
                UFFD_EVENT_REMOVE => MappingChange::Freed {
                    start: word(0) / PAGE,
                    end: word(1) / PAGE,
                },
                UFFD_EVENT_UNMAP => MappingChange::Unmapped {
                    start: word(0) / PAGE,
                    end: word(1) / PAGE,
                },
                other => return Err(io::Error::other(format!("unknown event {other} of a userfaultfd"))),
            });
        }
        Ok(())
    }

    /// `argument` must be the structure that belongs to `request`.
    fn ioctl<T>(&self, request: u32, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the kernel reads and writes `argument`, whose type is its own, and fills or maps only memory that its
        // process has registered.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request.into(), argument) };
        Errno::result(result).map(drop)
    }
}

fn range(page: u64, count: u64) -> uffdio_range {
    uffdio_range {
        start: page * PAGE,
        len: count * PAGE,
    }
}

/// The result of COPY, ZEROPAGE or CONTINUE. The kernel reports a part as an error and a count, and an error also as a
/// negative count.
fn filled(result: Result<(), Errno>, bytes: i64) -> Result<u64, Errno> {
    match u64::try_from(bytes) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(result.err().unwrap_or(Errno::EAGAIN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_was_filled_counts() {
        assert_eq!(filled(Ok(()), 3), Ok(3));
        assert_eq!(filled(Err(Errno::EAGAIN), 2), Ok(2));
        let error = i64::from(Errno::EEXIST as i32);
        assert_eq!(filled(Err(Errno::EEXIST), -error), Err(Errno::EEXIST));
        assert_eq!(filled(Ok(()), 0), Err(Errno::EAGAIN));
    }
}
