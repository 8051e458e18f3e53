//! One process's memory, and filling it. Results that the kernel may normally return are outcomes, not errors.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;

use crate::PAGE;
use crate::address_map::AddressMap;
use crate::streams::Streams;
use crate::userfault::{EventBuffer, Fault, MappingChange, Register, Userfault};

/// A page that is never registered: the lowest that may be mapped.
const PROBE: u64 = 0x10000 / PAGE;

/// Outcome of an attempt to fill pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillOutcome {
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

/// A process's memory as seen by the pager.
#[derive(Debug)]
pub struct ProcessMemory {
    /// Unique among all memories of its pager, past ones included.
    pub key: u64,
    /// Process id at the checkpoint. For a child forked later, the id of the ancestor whose snapshot it shares.
    pub pid: i32,
    /// What belongs to the snapshot. A forked child shares the map until one of the two changes its memory.
    pub map: Arc<AddressMap>,
    pub(crate) streams: Streams,
    userfault: Userfault,
}

impl ProcessMemory {
    /// Takes over a userfaultfd.
    pub fn new(key: u64, pid: i32, userfault: Userfault, map: Arc<AddressMap>) -> Self {
        Self {
            key,
            pid,
            map,
            streams: Streams::default(),
            userfault,
        }
    }

    /// The descriptor, for polling.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.userfault.as_fd()
    }

    /// Reads pending events without waiting. Faults are kept apart from other events.
    ///
    /// # Errors
    /// If the descriptor cannot be read any more.
    pub fn read(
        &self,
        buffer: &mut EventBuffer,
        happened: &mut Vec<MappingChange>,
        faults: &mut Vec<Fault>,
    ) -> io::Result<()> {
        self.userfault.read(buffer, happened, faults)
    }

    /// Registers a private file mapping for faults: both on pages that the file lacks and on pages that it has.
    ///
    /// # Errors
    /// If the kernel refuses. The mapping must not be touched then.
    pub fn register_mapped(&self, page: u64, count: u64) -> Result<(), Errno> {
        self.userfault.register(page, count, Register::MissingAndMinor)
    }

    /// Registers anonymous memory for faults on missing pages.
    ///
    /// # Errors
    /// If the kernel refuses. The memory must not be touched then.
    pub fn register_anonymous(&self, page: u64, count: u64) -> Result<(), Errno> {
        self.userfault.register(page, count, Register::Missing)
    }

    /// Leaves a range to the kernel. No thread may be waiting for a page in it.
    ///
    /// # Errors
    /// If the kernel refuses. Faults are then still reported here.
    pub fn unregister(&self, page: u64, count: u64) -> Result<(), Errno> {
        self.userfault.unregister(page, count)
    }

    /// Lets in `count` pages from `page` on, which the mapped file has.
    pub fn let_in(&self, page: u64, count: u64) -> FillOutcome {
        self.woken(page, self.userfault.let_in(page, count, true))
    }

    /// Like `Self::let_in`, without waking waiters. For pages without known waiters.
    pub fn let_in_quietly(&self, page: u64, count: u64) -> FillOutcome {
        outcome(self.userfault.let_in(page, count, false))
    }

    /// Fills pages from `page` on with `bytes`, whose length is a positive multiple of 4096.
    pub fn copy(&self, page: u64, bytes: &[u8]) -> FillOutcome {
        debug_assert!(!bytes.is_empty() && (bytes.len() as u64).is_multiple_of(PAGE));
        self.woken(page, self.userfault.copy(page, bytes))
    }

    /// Fills `count` pages from `page` on with zeros.
    pub fn zero(&self, page: u64, count: u64) -> FillOutcome {
        self.woken(page, self.userfault.zero(page, count, true))
    }

    /// Like `Self::zero`, without waking waiters. For pages without known waiters.
    pub fn zero_quietly(&self, page: u64, count: u64) -> FillOutcome {
        outcome(self.userfault.zero(page, count, false))
    }

    /// The outcome. If there was nothing to fill, waiters are woken so that they look again.
    fn woken(&self, page: u64, result: Result<u64, Errno>) -> FillOutcome {
        let filled = outcome(result);
        if matches!(filled, FillOutcome::AlreadyPresent | FillOutcome::Unmapped) {
            self.wake(page);
        }
        filled
    }

    /// Makes waiters of a present page look again.
    pub fn look_again(&self, page: u64) -> FillOutcome {
        self.wake(page);
        FillOutcome::AlreadyPresent
    }

    fn wake(&self, page: u64) {
        // A failure means that the process is dead, so there are no waiters.
        let _ = self.userfault.wake(page);
    }

    /// Whether the process still has its memory.
    pub fn is_alive(&self) -> bool {
        // Nothing is registered at this address, so nothing is filled. Only the error matters.
        self.userfault.zero(PROBE, 1, false) != Err(Errno::ESRCH)
    }
}

/// The meaning of the kernel's result of COPY, CONTINUE or ZEROPAGE, by `ioctl_userfaultfd(2)` and the kernel's own
/// code.
fn outcome(result: Result<u64, Errno>) -> FillOutcome {
    match result {
        Ok(bytes) => FillOutcome::Pages(bytes / PAGE),
        Err(Errno::EAGAIN) => FillOutcome::Changing,
        Err(Errno::EEXIST) => FillOutcome::AlreadyPresent,
        // ENOSPC: returned by kernels before 4.13 if the process has exited.
        Err(Errno::ESRCH | Errno::ENOSPC) => FillOutcome::ProcessGone,
        Err(Errno::EFAULT) => FillOutcome::NotInFile,
        Err(Errno::ENOMEM) => FillOutcome::NoMemory,
        // ENOENT: no such mapping. EINVAL: no longer a mapping of this kind.
        Err(Errno::ENOENT | Errno::EINVAL) => FillOutcome::Unmapped,
        Err(other) => FillOutcome::Refused(other as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_documents_is_an_outcome() {
        let cases = [
            (Errno::EAGAIN, FillOutcome::Changing),
            (Errno::EEXIST, FillOutcome::AlreadyPresent),
            (Errno::ENOENT, FillOutcome::Unmapped),
            (Errno::EINVAL, FillOutcome::Unmapped),
            (Errno::ESRCH, FillOutcome::ProcessGone),
            (Errno::ENOSPC, FillOutcome::ProcessGone),
            (Errno::EFAULT, FillOutcome::NotInFile),
            (Errno::ENOMEM, FillOutcome::NoMemory),
            (Errno::EPERM, FillOutcome::Refused(libc::EPERM)),
        ];
        for (errno, expected) in cases {
            assert_eq!(outcome(Err(errno)), expected);
        }
        assert_eq!(outcome(Ok(3 * PAGE)), FillOutcome::Pages(3));
    }
}
