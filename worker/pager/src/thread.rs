//! The pager's thread for one instance: it waits for CRIU, then reads what the processes do and has it answered.
//!
//! It lets go of the processes' memory only when they are dead: without it, pages they still miss would read as zero.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use userfaultfd::EventBuffer;

use crate::handshake::{self, Greeting};
use crate::memory::{Fault, Happened, Memory};
use crate::pager::{Command, Layout, LostPage, Reach};
use crate::source::{PageRef, PageSource};

/// Events read at once.
const EVENTS: usize = 32;
/// Memories of one instance (processes that are or descend from restored ones) before dead ones are looked for.
const SWEEP_AT: usize = 16;
/// Memories of one instance at most; with a further one the instance is killed.
const MEMORIES_MAX: usize = 4096;
/// Intervals that all address maps of one instance may have together, about 50 bytes each. A process that frees every other
/// page makes one a page; beyond this it is killed.
const INTERVALS_MAX: usize = 1 << 20;
/// How long processes that were killed may take to be gone before their memory is let go.
const DEATH_LIMIT: Duration = Duration::from_secs(10);

/// A fault that could not be answered yet.
pub(crate) struct Pending {
    /// Index into the memories.
    pub(crate) memory: usize,
    pub(crate) fault: Fault,
    /// How often it was tried in vain.
    pub(crate) attempts: u32,
}

pub(crate) struct Thread {
    pub(crate) source: Arc<dyn PageSource>,
    pub(crate) layout: Layout,
    pub(crate) reach: Reach,
    pub(crate) memories: Vec<Memory>,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) recorded: HashSet<PageRef>,
    /// Whether the instance is being killed.
    pub(crate) lost: bool,
    limit: Duration,
}

impl Thread {
    pub(crate) fn new(source: Arc<dyn PageSource>, layout: Layout, reach: Reach, limit: Duration) -> Self {
        Self {
            source,
            layout,
            reach,
            memories: Vec::new(),
            pending: VecDeque::new(),
            recorded: HashSet::new(),
            lost: false,
            limit,
        }
    }

    pub(crate) fn run(mut self, listener: &UnixListener) {
        let Some(stream) = self.accept(listener) else { return };
        let failed = match catch_unwind(AssertUnwindSafe(|| self.serve(stream))) {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some("it panicked".to_owned()),
        };
        if let Some(why) = failed {
            tracing::error!(error = why, "the pager ends early");
            self.lose(LostPage {
                pid: 0,
                page: 0,
                message: format!("the pager failed: {why}"),
            });
        }
        self.see_out();
    }

    /// Waits until the processes are dead, who wait in vain for what they touch now. They were killed, or will be before the
    /// handle is dropped.
    fn see_out(&mut self) {
        let mut told = None;
        loop {
            self.memories.retain(Memory::is_alive);
            if self.memories.is_empty() {
                return;
            }
            let deadline = match told {
                Some(deadline) => deadline,
                None if self.is_told_to_stop() => *told.insert(Instant::now() + DEATH_LIMIT),
                None => Instant::now() + DEATH_LIMIT,
            };
            if Instant::now() >= deadline {
                tracing::error!(processes = self.memories.len(), "memory of living processes is let go");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_told_to_stop(&self) -> bool {
        loop {
            match self.reach.inbox.try_recv() {
                Ok(Command::Prepare(_, done)) => drop(done),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// Waits for CRIU; `None` when told to stop or out of time.
    fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        let deadline = Instant::now() + self.limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
            let mut ready = [
                PollFd::new(listener.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.reach.bell.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut ready, wait) {
                Err(nix::Error::EINTR) => {}
                Err(_) | Ok(0) => return None,
                Ok(_) if ready[0].any() == Some(true) => {
                    let (stream, _) = listener.accept().ok()?;
                    stream.set_read_timeout(Some(self.limit)).ok()?;
                    return Some(stream);
                }
                // Before the handshake the only command is to stop.
                Ok(_) => return None,
            }
        }
    }

    fn serve(&mut self, stream: UnixStream) -> io::Result<()> {
        let mut buffer = EventBuffer::new(EVENTS);
        let (mut happened, mut faults) = (Vec::with_capacity(EVENTS), Vec::with_capacity(EVENTS));
        // Closed with the last word: our end belongs to the sandbox's network namespace, where the function would see its path.
        let mut greeting = Some(stream);
        loop {
            let ready = self.wait(greeting.as_ref())?;
            if ready.spoken {
                self.listen(&mut greeting)?;
            }
            for index in ready.memories {
                if let Err(e) = self.memories[index].read(&mut buffer, &mut happened, &mut faults) {
                    if self.memories[index].is_alive() {
                        return Err(io::Error::other(e));
                    }
                    continue;
                }
                self.take(index, &mut happened, &mut faults);
            }
            for _ in 0..self.pending.len() {
                if let Some(again) = self.pending.pop_front() {
                    self.answer(again.memory, again.fault, again.attempts);
                }
            }
            if ready.commanded {
                // What CRIU has said before counts for what we are told now.
                self.listen(&mut greeting)?;
                if self.obey() {
                    return Ok(());
                }
            }
            if self.memories.len() > SWEEP_AT && self.pending.is_empty() {
                self.memories.retain(Memory::is_alive);
            }
        }
    }

    /// Takes all words that CRIU has said.
    fn listen(&mut self, greeting: &mut Option<UnixStream>) -> io::Result<()> {
        while let Some(stream) = greeting.as_ref() {
            let mut ready = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::ZERO) {
                Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(e.into()),
                Ok(0) => return Ok(()),
                Ok(_) => {}
            }
            match handshake::next(stream)? {
                Greeting::Process(pid, fd) => self.memories.push(Memory::new(pid, fd, Arc::default())),
                Greeting::Finished | Greeting::Closed => *greeting = None,
            }
        }
        Ok(())
    }

    /// Waits for something to do.
    fn wait(&self, stream: Option<&UnixStream>) -> io::Result<Ready> {
        let mut fds = Vec::with_capacity(self.memories.len() + 2);
        fds.push(PollFd::new(self.reach.bell.as_fd(), PollFlags::POLLIN));
        fds.extend(self.memories.iter().map(|m| PollFd::new(m.fd(), PollFlags::POLLIN)));
        fds.extend(stream.map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)));
        let timeout = if self.pending.is_empty() {
            PollTimeout::NONE
        } else {
            PollTimeout::from(1_u8)
        };
        loop {
            match poll(&mut fds, timeout) {
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => break,
            }
        }
        let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
        let last = 1 + self.memories.len();
        Ok(Ready {
            commanded: is_ready(&fds[0]),
            spoken: fds.get(last).is_some_and(is_ready),
            memories: (1..last).filter(|i| is_ready(&fds[*i])).map(|i| i - 1).collect(),
        })
    }

    /// Takes what was read at once. The kernel gives faults before other events, whatever came first; and once an event is
    /// read its process goes on. So the map must know of all events before a fault is answered by it.
    fn take(&mut self, index: usize, happened: &mut Vec<Happened>, faults: &mut Vec<Fault>) {
        for event in happened.drain(..) {
            let memory = &mut self.memories[index];
            match event {
                Happened::Removed { start, end } => Arc::make_mut(&mut memory.map).remove(start, end),
                Happened::Moved { from, to, count } => Arc::make_mut(&mut memory.map).remap(from, to, count),
                Happened::Forked(fd) => {
                    let child = Memory::new(memory.pid, fd, Arc::clone(&memory.map));
                    self.memories.push(child);
                }
            }
            self.reach.stats.events.fetch_add(1, Ordering::Relaxed);
            self.check_bounds(index);
        }
        for fault in faults.drain(..) {
            self.reach.stats.faults.fetch_add(1, Ordering::Relaxed);
            self.answer(index, fault, 0);
        }
    }

    /// What the processes do must not take memory of the host without bound.
    fn check_bounds(&mut self, index: usize) {
        let intervals = || self.memories.iter().map(|m| m.map.len()).sum::<usize>();
        let message = if self.memories.len() > MEMORIES_MAX {
            format!("more than {MEMORIES_MAX} processes share the snapshot's memory")
        } else if self.memories[index].map.len() > INTERVALS_MAX / MEMORIES_MAX && intervals() > INTERVALS_MAX {
            format!("its memory is cut into more than {INTERVALS_MAX} pieces, freed or moved")
        } else {
            return;
        };
        let pid = self.memories[index].pid;
        self.lose(LostPage { pid, page: 0, message });
    }

    /// Does what the handle asked for; `true` when that is to stop.
    fn obey(&mut self) -> bool {
        // The bell is only a reminder; its count does not matter.
        let _ = self.reach.bell.read();
        loop {
            match self.reach.inbox.try_recv() {
                Ok(Command::Prepare(pages, done)) => {
                    let filled = self.prepare(&pages);
                    // Nobody waiting any more is fine.
                    let _ = done.try_send(filled);
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// Has the instance killed; its faults are not answered any more.
    pub(crate) fn lose(&mut self, lost: LostPage) {
        self.lost = true;
        self.pending.clear();
        if let Some(kill) = self.reach.on_lost.take() {
            kill(lost);
        }
    }
}

/// What there is to do.
struct Ready {
    commanded: bool,
    spoken: bool,
    /// Indices of memories with events.
    memories: Vec<usize>,
}
