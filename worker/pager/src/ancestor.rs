//! The memory of the process that forks what it restores. With one of its pages registered, and fork events asked for, the kernel holds it
//! at each fork until the event is read, which has a userfaultfd of the child's memory beside it.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use userfaultfd::EventBuffer;

use crate::PAGE;
use crate::address_map::AddressMap;
use crate::memory::{Happened, Memory};

/// The version of the kernel's interface.
const API: u64 = 0xaa;
/// Fork, remap, remove and unmap events: what CRIU asks for, too. Children have what their ancestor has.
const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// `struct uffdio_api`.
#[repr(C)]
struct Agreement {
    api: u64,
    features: u64,
    ioctls: u64,
}

nix::ioctl_readwrite!(agree, API, 0x3f, Agreement);

/// Agrees with the kernel on what it tells of the memory of a fresh userfaultfd. Only the host's root may ask for
/// fork events, wherever the memory is.
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
    // SAFETY: the kernel reads and writes this structure of its own layout only.
    unsafe { agree(userfault.as_raw_fd(), &raw mut agreement) }?;
    Ok(())
}

/// Memory whose owner's children are told of, until this is dropped.
#[derive(Debug)]
pub struct Ancestor {
    memory: Memory,
    /// Number of the registered page.
    page: u64,
}

impl Ancestor {
    /// Of a fresh userfaultfd, with the page at this address, which is mapped in its memory for nothing else and was never touched. Somebody
    /// must read it by the time its process forks.
    ///
    /// # Errors
    /// When the kernel refuses.
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

    /// Takes the memory of children that were forked since, without waiting; each goes on once it is taken.
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

    /// Number of the page that is registered in a child, too, until it is said not to be.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }
}
