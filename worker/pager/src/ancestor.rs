//! The memory of the process that forks the processes it restores. One of its pages is registered, with fork events
//! enabled. At each fork, the kernel then holds the process until the event is read. The event carries a userfaultfd
//! for the child's memory.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use userfaultfd::EventBuffer;

use crate::PAGE;
use crate::address_map::AddressMap;
use crate::memory::{Happened, Memory};

/// Version of the kernel's interface.
const API: u64 = 0xaa;
/// Fork, remap, remove and unmap events, the same that CRIU requests. Children inherit them.
const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// `struct uffdio_api`.
#[repr(C)]
struct Agreement {
    api: u64,
    features: u64,
    ioctls: u64,
}

nix::ioctl_readwrite!(agree, API, 0x3f, Agreement);

/// Negotiates with the kernel the events of a fresh userfaultfd. Only the host's root may request fork events, whatever
/// memory the userfaultfd belongs to.
#[expect(
    unsafe_code,
    reason = "userfaultfd's own wrapper agrees only on what it has made itself"
)]
pub(crate) fn agree_on_events(userfault: &OwnedFd) -> io::Result<()> {
    let mut agreement = Agreement {
        api: API,
        features: EVENTS,
        ioctls: 0,
    };
    // SAFETY: the kernel only reads and writes this structure, whose layout is the kernel's.
    unsafe { agree(userfault.as_raw_fd(), &raw mut agreement) }?;
    Ok(())
}

/// A memory whose owner's children are reported until this is dropped.
#[derive(Debug)]
pub struct Ancestor {
    memory: Memory,
    /// Number of the registered page.
    page: u64,
}

impl Ancestor {
    /// Takes a fresh userfaultfd, and the address of a page in its memory that is mapped for this purpose and was never
    /// touched. Events must be read by the time the process forks.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(userfault: OwnedFd, address: u64) -> io::Result<Self> {
        agree_on_events(&userfault)?;
        let memory = Memory::new(0, 0, userfault, Arc::new(AddressMap::new([].into())));
        let page = address / PAGE;
        memory.register_anonymous(page, 1).map_err(io::Error::other)?;
        Ok(Self { memory, page })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Takes the memory of children forked since, without waiting. Each child continues once its memory is taken.
    pub(crate) fn children(&self, buffer: &mut EventBuffer) -> io::Result<Vec<OwnedFd>> {
        let (mut happened, mut faults) = (Vec::new(), Vec::new());
        self.memory
            .read(buffer, &mut happened, &mut faults)
            .map_err(io::Error::other)?;
        let forked = happened.into_iter().filter_map(|event| match event {
            Happened::Forked(fd) => Some(fd),
            _ => None,
        });
        Ok(forked.collect())
    }

    /// Number of the page that is registered. In a child it stays registered until it is unregistered.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }
}
