//! The events that the pager's thread waits for: one epoll set, so that waiting costs the same for any number of
//! processes, and allocates nothing.

use std::io;
use std::os::fd::AsFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Keys that do not belong to a memory.
const BELL: u64 = u64::MAX;
const CRIU: u64 = u64::MAX - 1;
/// Descriptors handled at once. Further ready ones are found the next time.
const READY: usize = 32;

pub(crate) struct Poller {
    epoll: Epoll,
    events: [EpollEvent; READY],
    /// Keys of the memories with events.
    pub(crate) memories: Vec<u64>,
    pub(crate) rung: bool,
    /// Whether CRIU has sent something.
    pub(crate) spoken: bool,
}

impl Poller {
    /// Waits only for the bell at first.
    pub(crate) fn new(bell: impl AsFd) -> io::Result<Self> {
        let poller = Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            events: [EpollEvent::empty(); READY],
            memories: Vec::with_capacity(READY),
            rung: false,
            spoken: false,
        };
        poller.add(bell, BELL)?;
        Ok(poller)
    }

    fn add(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, key))?)
    }

    /// Waits for CRIU's messages too.
    pub(crate) fn add_criu(&self, stream: impl AsFd) -> io::Result<()> {
        self.add(stream, CRIU)
    }

    /// Waits for a memory's events too.
    pub(crate) fn add_memory(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        self.add(fd, key)
    }

    /// Stops waiting for a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // A descriptor that was never added needs no removal.
        let _ = self.epoll.delete(fd);
    }

    /// Waits until something is ready, at most `limit`. Returns whether anything is.
    pub(crate) fn wait(&mut self, limit: EpollTimeout) -> io::Result<bool> {
        self.memories.clear();
        (self.rung, self.spoken) = (false, false);
        let ready = loop {
            match self.epoll.wait(&mut self.events, limit) {
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(ready) => break ready,
            }
        };
        for event in &self.events[..ready] {
            match event.data() {
                BELL => self.rung = true,
                CRIU => self.spoken = true,
                key => self.memories.push(key),
            }
        }
        Ok(ready > 0)
    }
}
