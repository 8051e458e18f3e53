//! What the pager's thread waits on: one epoll set, so that waiting costs the same however many processes there are, and
//! allocates nothing.

use std::io;
use std::os::fd::AsFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Keys that are no memory's.
const BELL: u64 = u64::MAX;
const CRIU: u64 = u64::MAX - 1;
/// Descriptors taken up at once; what is ready beyond that is found the next time.
const READY: usize = 32;

pub(crate) struct Poller {
    epoll: Epoll,
    events: [EpollEvent; READY],
    /// Keys of the memories with events.
    pub(crate) memories: Vec<u64>,
    /// Whether the bell rang.
    pub(crate) rung: bool,
    /// Whether CRIU has said something.
    pub(crate) spoken: bool,
}

impl Poller {
    /// Waits for nothing but the bell yet.
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

    /// Waits for CRIU's words, too.
    pub(crate) fn add_criu(&self, stream: impl AsFd) -> io::Result<()> {
        self.add(stream, CRIU)
    }

    /// Waits for what happens in a memory, too.
    pub(crate) fn add_memory(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        self.add(fd, key)
    }

    /// Leaves a descriptor out from now on.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // One that was never added is left out already.
        let _ = self.epoll.delete(fd);
    }

    /// Waits until something is ready, at most so long, and says whether anything is.
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
