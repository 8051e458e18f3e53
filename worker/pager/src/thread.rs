//! The pager's thread for one instance: waits for CRIU, then reads the processes' events and has them handled.
//!
//! The thread releases the processes' memory only once they are dead. Otherwise their missing pages would read as zero.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollTimeout;

use crate::address_map::AddressMap;
use crate::ancestor::Ancestor;
use crate::command::{Command, Handover, LostPage, PreparedMemory, StoppedProcess, ThreadShared};
use crate::fetching::{Fetching, PendingFault};
use crate::handshake::{self, Greeting};
use crate::layout::Layout;
use crate::memory::ProcessMemory;
use crate::poller::Poller;
use crate::source::PageSource;
use crate::userfault::{EventBuffer, Fault, MappingChange, Userfault};

/// Events read at once.
const EVENTS: usize = 32;
/// Number of memories of one instance (restored processes and their descendants) from which dead ones are swept.
const SWEEP_AT: usize = 16;
/// Maximum number of memories of one instance. One more gets the instance killed.
const MEMORIES_MAX: usize = 4096;
/// Maximum number of intervals in all address maps of one instance, about 50 bytes each. A process that frees every
/// other page causes one interval per page. Beyond this limit it is killed.
const INTERVALS_MAX: usize = 1 << 20;
/// Number of immediate retries of faults while the process changes its mappings. Later retries are a millisecond apart.
const YIELDS: u32 = 200;
/// Time limit for killed processes to disappear before their memory is released.
const DEATH_LIMIT: Duration = Duration::from_secs(10);

enum ProcessAnnouncements {
    Criu(UnixStream),
    /// By the kernel, for the children of CRIU. Includes the process id of the restored one.
    Kernel(Ancestor, i32),
}

impl AsFd for ProcessAnnouncements {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Criu(stream) => stream.as_fd(),
            Self::Kernel(ancestor, _) => ancestor.fd(),
        }
    }
}

pub(crate) struct PagerThread {
    pub(crate) source: Arc<dyn PageSource>,
    pub(crate) layout: Layout,
    pub(crate) reach: ThreadShared,
    /// By key, ascending.
    pub(crate) memories: Vec<ProcessMemory>,
    next_key: u64,
    poller: Poller,
    pub(crate) fetching: Fetching,
    pub(crate) pending: VecDeque<PendingFault>,
    /// Whether the instance is being killed.
    pub(crate) lost: bool,
    /// Whether any fault has been answered.
    pub(crate) has_answered: bool,
    limit: Duration,
    /// Maps for processes that CRIU has not handed over yet.
    maps: HashMap<i32, AddressMap>,
}

impl PagerThread {
    pub(crate) fn new(
        source: Arc<dyn PageSource>,
        layout: Layout,
        maps: HashMap<i32, AddressMap>,
        reach: ThreadShared,
        limit: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new(reach.bell.as_ref())?,
            fetching: Fetching::new(Arc::clone(&source), Arc::clone(&reach.bell)),
            source,
            layout,
            reach,
            memories: Vec::new(),
            next_key: 0,
            pending: VecDeque::with_capacity(EVENTS),
            lost: false,
            has_answered: false,
            limit,
            maps,
        })
    }

    pub(crate) fn run(mut self, handover: Handover) {
        let words = match handover {
            Handover::Socket(listener) => match self.accept(&listener) {
                Some(stream) => Some(ProcessAnnouncements::Criu(stream)),
                None => return,
            },
            Handover::Fork(ancestor, pid) => Some(ProcessAnnouncements::Kernel(ancestor, pid)),
            Handover::Given => None,
        };
        let failed = match catch_unwind(AssertUnwindSafe(|| self.serve(words))) {
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
        tracing::debug!(stats = ?self.reach.stats, "the pager ends");
        self.wait_for_deaths();
    }

    /// Waits until the processes are dead. Their faults are not answered any more. They were killed, or will be before
    /// the handle is dropped.
    fn wait_for_deaths(&mut self) {
        let mut told = None;
        loop {
            self.memories.retain(ProcessMemory::is_alive);
            if self.memories.is_empty() {
                return;
            }
            let deadline = match told {
                Some(deadline) => deadline,
                None if self.is_told_to_stop() => *told.insert(Instant::now() + DEATH_LIMIT),
                None => Instant::now() + DEATH_LIMIT,
            };
            if Instant::now() >= deadline {
                tracing::error!(
                    processes = self.memories.len(),
                    "the pager stops serving memory of live processes"
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_told_to_stop(&self) -> bool {
        loop {
            match self.reach.inbox.try_recv() {
                Ok(Command::Prepare(_, _, done)) => drop(done),
                Ok(Command::Fill(_, _, done)) => drop(done),
                Ok(Command::Report(done)) => drop(done),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// Waits for CRIU. `None` when stopped or out of time.
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
                // Before the handshake, the only command is to stop.
                Ok(_) => return None,
            }
        }
    }

    fn serve(&mut self, mut words: Option<ProcessAnnouncements>) -> io::Result<()> {
        let mut buffer = EventBuffer::new(EVENTS);
        let (mut happened, mut faults) = (Vec::with_capacity(EVENTS), Vec::with_capacity(EVENTS));
        let mut ready = Vec::with_capacity(EVENTS);
        let stats = Arc::clone(&self.reach.stats);
        if let Some(words) = &words {
            self.poller.add_criu(words)?;
        }
        if matches!(words, Some(ProcessAnnouncements::Criu(_))) {
            self.reach.stats.marks.lock().handshake = Some((Instant::now(), Duration::ZERO));
        }
        // Closed with the last message. Our end of the stream belongs to the sandbox's network namespace, where the
        // function would see its path.
        let mut in_vain = 0;
        loop {
            self.wait(&mut in_vain)?;
            if self.poller.spoken {
                self.listen(&mut words, &mut buffer)?;
            }
            std::mem::swap(&mut ready, &mut self.poller.memories);
            for key in ready.drain(..) {
                let Some(index) = self.index(key) else { continue };
                let _taking = stats.taking.lock();
                if let Err(e) = self.memories[index].read(&mut buffer, &mut happened, &mut faults) {
                    if self.memories[index].is_alive() {
                        return Err(io::Error::other(e));
                    }
                    continue;
                }
                if matches!(words, Some(ProcessAnnouncements::Kernel(..))) {
                    // An event of the ancestor's page, which a child had unmapped before it was unregistered. The
                    // kernel reports everything that was unmapped along with it.
                    happened.clear();
                    faults.clear();
                }
                self.take(index, &mut happened, &mut faults)?;
            }
            for _ in 0..self.pending.len() {
                if let Some(again) = self.pending.pop_front() {
                    self.answer(again);
                }
            }
            if self.poller.rung {
                // CRIU's earlier messages must be processed before the command.
                self.listen(&mut words, &mut buffer)?;
                if self.obey(&mut words) {
                    return Ok(());
                }
                self.answer_fetched();
            }
            if self.memories.len() > SWEEP_AT {
                self.sweep();
            }
        }
    }

    /// Waits for something to do, or only briefly if faults have to be retried.
    fn wait(&mut self, in_vain: &mut u32) -> io::Result<()> {
        if self.pending.is_empty() {
            *in_vain = 0;
            self.poller.wait(EpollTimeout::NONE)?;
        } else if *in_vain < YIELDS {
            // The process that changes its mappings only needs to continue, perhaps on this core.
            *in_vain += 1;
            if !self.poller.wait(EpollTimeout::ZERO)? {
                std::thread::yield_now();
            }
        } else {
            self.poller.wait(EpollTimeout::from(1_u8))?;
        }
        Ok(())
    }

    /// Index of the memory with this key, if its process has not died.
    pub(crate) fn index(&self, key: u64) -> Option<usize> {
        self.memories.binary_search_by_key(&key, |m| m.key).ok()
    }

    fn add_memory(&mut self, pid: i32, userfault: Userfault, map: Arc<AddressMap>) -> io::Result<()> {
        let memory = ProcessMemory::new(self.next_key, pid, userfault, map);
        self.next_key += 1;
        self.poller.add_memory(memory.fd(), memory.key)?;
        self.memories.push(memory);
        Ok(())
    }

    /// Releases the memory of processes that have died.
    fn sweep(&mut self) {
        let poller = &self.poller;
        self.memories.retain(|memory| {
            let alive = memory.is_alive();
            if !alive {
                poller.remove(memory.fd());
            }
            alive
        });
    }

    /// Processes all announcements of restored processes.
    fn listen(&mut self, words: &mut Option<ProcessAnnouncements>, buffer: &mut EventBuffer) -> io::Result<()> {
        while let Some(said) = words.as_ref() {
            let mut ready = [PollFd::new(said.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::ZERO) {
                Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(e.into()),
                Ok(0) => return Ok(()),
                Ok(_) => {}
            }
            match said {
                ProcessAnnouncements::Criu(stream) => match handshake::next(stream)? {
                    Greeting::Process(pid, fd) => {
                        self.take_over(pid, fd.into())?;
                        self.maps.remove(&pid);
                        if let Some((since, took)) = &mut self.reach.stats.marks.lock().handshake {
                            *took = since.elapsed();
                        }
                    }
                    Greeting::Finished | Greeting::Closed => {
                        self.poller.remove(stream);
                        *words = None;
                    }
                },
                ProcessAnnouncements::Kernel(ancestor, pid) => {
                    let since = Instant::now();
                    for fd in ancestor.children(buffer)? {
                        self.take_over(*pid, fd)?;
                        // Otherwise the child would be held when it unmaps this page. The child may be faster.
                        if let Some(Err(e)) = self.memories.last().map(|m| m.unregister(ancestor.page(), 1)) {
                            tracing::debug!(error = %e, "a child of criu's has gone");
                        }
                    }
                    self.reach.stats.marks.lock().handshake = Some((since, since.elapsed()));
                }
            }
        }
        Ok(())
    }

    fn take_over(&mut self, pid: i32, userfault: Userfault) -> io::Result<()> {
        let plain = || AddressMap::new(self.layout.backed_of(pid));
        let map = self.maps.get(&pid).cloned().unwrap_or_else(plain);
        self.add_memory(pid, userfault, Arc::new(map))
    }

    fn take_given(&mut self, given: Vec<StoppedProcess>) -> Result<(), String> {
        let since = Instant::now();
        for StoppedProcess { pid, userfault } in given {
            let userfault = Userfault::from(userfault);
            userfault
                .agree_on_events()
                .and_then(|()| self.take_over(pid, userfault))
                .map_err(|e| format!("take over the memory of process {pid}: {e}"))?;
            self.reach.stats.marks.lock().handshake = Some((since, since.elapsed()));
        }
        Ok(())
    }

    /// All processes are there. If the kernel announced them, some may have been CRIU's own helpers, which have ended.
    /// The one that is left is the restored process.
    fn settle(&mut self, words: &mut Option<ProcessAnnouncements>) -> Result<(), String> {
        let Some(ProcessAnnouncements::Kernel(ancestor, _)) = words else {
            return Ok(());
        };
        self.poller.remove(ancestor.fd());
        *words = None;
        self.maps.clear();
        self.sweep();
        match self.memories.len() {
            1 => Ok(()),
            other => Err(format!("criu has {other} children where it restored one")),
        }
    }

    /// Processes events that were read together. The kernel returns faults before other events, whatever the order of
    /// occurrence. Once an event is read, its process continues. So the map must reflect all events before it answers a
    /// fault.
    fn take(&mut self, index: usize, happened: &mut Vec<MappingChange>, faults: &mut Vec<Fault>) -> io::Result<()> {
        let since = Instant::now();
        for event in happened.drain(..) {
            let memory = &mut self.memories[index];
            match event {
                MappingChange::Freed { start, end } => Arc::make_mut(&mut memory.map).free(start, end),
                MappingChange::Unmapped { start, end } => Arc::make_mut(&mut memory.map).remove(start, end),
                MappingChange::Moved { from, to, count } => Arc::make_mut(&mut memory.map).remap(from, to, count),
                MappingChange::Forked(fd) => {
                    let (pid, map) = (memory.pid, Arc::clone(&memory.map));
                    self.add_memory(pid, fd, map)?;
                }
            }
            self.reach.stats.events.fetch_add(1, Ordering::Relaxed);
            self.check_bounds(index);
        }
        for fault in faults.drain(..) {
            self.reach.stats.faults.fetch_add(1, Ordering::Relaxed);
            self.answer(PendingFault {
                memory: self.memories[index].key,
                fault,
                attempts: 0,
                brought: 0,
                since,
            });
        }
        Ok(())
    }

    /// The processes' behaviour must not use unbounded memory on the host.
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

    /// Executes the handle's commands. Returns `true` if one of them is to stop.
    fn obey(&mut self, words: &mut Option<ProcessAnnouncements>) -> bool {
        // The bell is only a reminder. Its count does not matter.
        let _ = self.reach.bell.read();
        loop {
            match self.reach.inbox.try_recv() {
                Ok(Command::Prepare(given, pages, done)) => {
                    let since = Instant::now();
                    let settled = self.take_given(given).and_then(|()| self.settle(words));
                    let prepared = settled.and_then(|()| self.prepare(&pages));
                    let prepared = prepared.map(|filled| PreparedMemory {
                        filled,
                        took: (since, since.elapsed()),
                    });
                    // The handle may not be waiting any more.
                    let _ = done.try_send(prepared);
                }
                Ok(Command::Fill(pages, origin, done)) => drop(done.try_send(self.fill_behind(pages, origin))),
                Ok(Command::Report(done)) => drop(done.try_send(self.report())),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// What the addresses of each process belong to. If some processes cannot be told apart, returns the number of
    /// excess processes as the error.
    fn report(&mut self) -> Result<Vec<(i32, AddressMap)>, usize> {
        self.sweep();
        let mut pids: Vec<_> = self.memories.iter().map(|m| m.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        match self.memories.len() - pids.len() {
            0 => Ok(self.memories.iter().map(|m| (m.pid, m.map.as_ref().clone())).collect()),
            more => Err(more),
        }
    }

    /// Gets the instance killed. Its faults are not answered any more.
    pub(crate) fn lose(&mut self, lost: LostPage) {
        self.lost = true;
        self.pending.clear();
        if let Some(kill) = self.reach.on_lost.take() {
            kill(lost);
        }
    }
}
