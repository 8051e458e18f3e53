//! The memory of the process that forks the processes it restores. One of its pages is registered, with fork events
//! enabled. At each fork, the kernel then holds the process until the event is read. The event carries a userfaultfd
//! for the child's memory.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::PAGE;
use crate::address_map::AddressMap;
use crate::memory::ProcessMemory;
use crate::userfault::{EventBuffer, MappingChange, Userfault};

/// A memory whose owner's children are reported until this is dropped.
#[derive(Debug)]
pub struct Ancestor {
    memory: ProcessMemory,
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
        let userfault = Userfault::from(userfault);
        userfault.agree_on_events()?;
        let memory = ProcessMemory::new(0, 0, userfault, Arc::new(AddressMap::new([].into())));
        let page = address / PAGE;
        memory.register_anonymous(page, 1)?;
        Ok(Self { memory, page })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Takes the memory of children forked since, without waiting. Each child continues once its memory is taken.
    pub(crate) fn children(&self, buffer: &mut EventBuffer) -> io::Result<Vec<Userfault>> {
        let (mut happened, mut faults) = (Vec::new(), Vec::new());
        self.memory.read(buffer, &mut happened, &mut faults)?;
        let forked = happened.into_iter().filter_map(|event| match event {
            MappingChange::Forked(fd) => Some(fd),
            _ => None,
        });
        Ok(forked.collect())
    }

    /// Number of the page that is registered. In a child it stays registered until it is unregistered.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }
}
