//! The pager's thread for one instance, and the handle to it.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use userfaultfd::EventBuffer;

use crate::PAGE;
use crate::address_map::{AddressMap, Origin};
use crate::handshake::{self, Greeting};
use crate::memory::{Filled, Happened, Memory};
use crate::source::{Held, PageRef, PageSource};

/// Events read at once.
const EVENTS: usize = 32;
/// Memories of one instance (processes that are or descend from restored ones) before dead ones are looked for.
const SWEEP_AT: usize = 16;
/// Memories of one instance at most; a further fork's child is served no pages and the instance is killed.
const MEMORIES_MAX: usize = 4096;
/// Pages recorded as working set at most: 1 GiB.
const RECORD_MAX: usize = 262_144;
/// How often a fault is tried again at once while the process changes its mappings.
const NO_MEMORY_RETRIES: u32 = 2_000;

/// What a pager is started with.
pub struct PagerConfig {
    /// Names the thread.
    pub name: String,
    /// Bound to `lazy-pages.socket` in the image directory.
    pub listener: UnixListener,
    /// Where pages come from.
    pub source: Arc<dyn PageSource>,
    /// How long CRIU may take to connect, and between its words.
    pub handshake_limit: Duration,
    /// Called once, on the pager's thread, when a page cannot be had. It must kill the instance before it returns: the
    /// thread that waits for the page waits on.
    pub on_lost: Box<dyn FnOnce(LostPage) + Send>,
}

/// A page that cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
#[error("page {page:#x} of process {pid} is lost: {message}")]
pub struct LostPage {
    /// Process id at the checkpoint.
    pub pid: i32,
    /// Page number.
    pub page: u64,
    /// Why.
    pub message: String,
}

/// Why the pager could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// The thread could not be started.
    #[error("start the pager's thread")]
    Start(#[source] io::Error),
    /// It ended, or does not answer.
    #[error("the pager has ended")]
    Ended,
}

/// What a pager has done, in pages and events.
#[derive(Debug, Default)]
pub struct Stats {
    /// Faults taken.
    pub faults: AtomicU64,
    /// Pages copied in answer to faults.
    pub copied: AtomicU64,
    /// Pages of zeros given.
    pub zeroed: AtomicU64,
    /// Pages copied ahead of any fault.
    pub prefetched: AtomicU64,
    /// Faults that had to wait for the source.
    pub fetched: AtomicU64,
    /// Remove, unmap, remap and fork events.
    pub events: AtomicU64,
}

enum Command {
    Prefetch(Arc<[PageRef]>, SyncSender<u64>),
    Stop,
}

/// The handle to an instance's pager. Dropping it stops the thread; the instance must be dead by then.
pub struct Pager {
    commands: SyncSender<Command>,
    bell: Arc<EventFd>,
    stats: Arc<Stats>,
    record: Arc<Record>,
}

#[derive(Default)]
struct Record {
    on: AtomicBool,
    pages: Mutex<Vec<PageRef>>,
}

impl Pager {
    /// Starts the thread, which waits for CRIU.
    ///
    /// # Errors
    /// When no thread or descriptor can be had.
    pub fn start(config: PagerConfig) -> Result<Self, PagerError> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| PagerError::Start(e.into()))?;
        let bell = Arc::new(bell);
        let (commands, inbox) = sync_channel(4);
        let stats = Arc::new(Stats::default());
        let record = Arc::new(Record::default());
        record.on.store(true, Ordering::Relaxed);
        let mut name = config.name.clone();
        name.truncate(15);
        let worker = Thread {
            source: config.source,
            stats: Arc::clone(&stats),
            record: Arc::clone(&record),
            bell: Arc::clone(&bell),
            inbox,
            on_lost: Some(config.on_lost),
            memories: Vec::new(),
            pending: VecDeque::new(),
            recorded: HashSet::new(),
            limit: config.handshake_limit,
        };
        let listener = config.listener;
        thread::Builder::new()
            .name(name)
            .stack_size(256 * 1024)
            .spawn(move || worker.run(&listener))
            .map_err(PagerError::Start)?;
        Ok(Self {
            commands,
            bell,
            stats,
            record,
        })
    }

    fn tell(&self, command: Command) -> Result<(), PagerError> {
        self.commands.try_send(command).map_err(|e| match e {
            TrySendError::Full(_) | TrySendError::Disconnected(_) => PagerError::Ended,
        })?;
        self.bell.write(1).map(drop).map_err(|_| PagerError::Ended)
    }

    /// Fills these pages ahead of any fault, as far as the source holds them. Blocks until done, at most `limit`; for the
    /// moment when the processes have registered their memory and do not run yet. Answers how many were filled.
    ///
    /// # Errors
    /// When the pager has ended or does not answer in time.
    pub fn prefetch(&self, pages: Arc<[PageRef]>, limit: Duration) -> Result<u64, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Prefetch(pages, done))?;
        answer.recv_timeout(limit).map_err(|_| PagerError::Ended)
    }

    /// Ends the recording and answers the pages that were touched, in the order of their faults.
    pub fn take_working_set(&self) -> Vec<PageRef> {
        self.record.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.record.pages.lock())
    }

    /// What it has done.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // When the inbox is full or the thread gone, dropping the sender says the same.
        let _ = self.tell(Command::Stop);
        let _ = self.bell.write(1);
    }
}

struct Thread {
    source: Arc<dyn PageSource>,
    stats: Arc<Stats>,
    record: Arc<Record>,
    bell: Arc<EventFd>,
    inbox: Receiver<Command>,
    on_lost: Option<Box<dyn FnOnce(LostPage) + Send>>,
    memories: Vec<Memory>,
    /// Faults to try again: index into `memories`, page, attempts.
    pending: VecDeque<(usize, u64, u32)>,
    recorded: HashSet<PageRef>,
    limit: Duration,
}

impl Thread {
    fn run(mut self, listener: &UnixListener) {
        let Some(stream) = self.accept(listener) else { return };
        if let Err(e) = self.serve(stream) {
            tracing::warn!(error = %e, "the pager ends early");
            self.lose(LostPage {
                pid: 0,
                page: 0,
                message: format!("the pager failed: {e}"),
            });
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
                PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
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
        let mut happened = Vec::with_capacity(EVENTS);
        // Closed with the last word: our end belongs to the sandbox's network namespace, where the function would see its path.
        let mut greeting = Some(stream);
        loop {
            let (commanded, spoken, readable) = self.wait(greeting.as_ref())?;
            if let Some(stream) = greeting.as_ref().filter(|_| spoken) {
                match handshake::next(stream)? {
                    Greeting::Process(pid, fd) => {
                        self.memories.push(Memory::new(pid, fd, AddressMap::default()));
                    }
                    Greeting::Finished | Greeting::Closed => greeting = None,
                }
            }
            for index in readable {
                if let Err(e) = self.memories[index].read(&mut buffer, &mut happened) {
                    if self.memories[index].is_alive() {
                        return Err(io::Error::other(e));
                    }
                    continue;
                }
                for event in happened.drain(..) {
                    self.take(index, event);
                }
            }
            for _ in 0..self.pending.len() {
                if let Some((index, page, attempts)) = self.pending.pop_front() {
                    self.fault(index, page, attempts);
                }
            }
            if commanded && self.obey() {
                return Ok(());
            }
            if self.memories.len() > SWEEP_AT && self.pending.is_empty() {
                self.sweep();
            }
        }
    }

    /// Waits for something to do: a command, a word of CRIU, memories with events.
    fn wait(&self, stream: Option<&UnixStream>) -> io::Result<(bool, bool, Vec<usize>)> {
        let mut fds = Vec::with_capacity(self.memories.len() + 2);
        fds.push(PollFd::new(self.bell.as_fd(), PollFlags::POLLIN));
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
        let ready = |fd: &PollFd<'_>| fd.any() == Some(true);
        let last = 1 + self.memories.len();
        let readable = (1..last).filter(|i| ready(&fds[*i])).map(|i| i - 1).collect();
        Ok((ready(&fds[0]), fds.get(last).is_some_and(ready), readable))
    }

    fn take(&mut self, index: usize, event: Happened) {
        if !matches!(event, Happened::Fault { .. }) {
            self.stats.events.fetch_add(1, Ordering::Relaxed);
        }
        match event {
            Happened::Fault { page } => {
                self.stats.faults.fetch_add(1, Ordering::Relaxed);
                self.fault(index, page, 0);
            }
            Happened::Removed { start, end } => self.memories[index].map.remove(start, end),
            Happened::Moved { from, to, count } => self.memories[index].map.remap(from, to, count),
            Happened::Forked(fd) => {
                let (pid, map) = (self.memories[index].pid, self.memories[index].map.clone());
                if self.memories.len() >= MEMORIES_MAX {
                    let message = format!("more than {MEMORIES_MAX} processes share the snapshot's memory");
                    self.lose(LostPage { pid, page: 0, message });
                }
                self.memories.push(Memory::new(pid, fd, map));
            }
        }
    }

    fn fault(&mut self, index: usize, page: u64, attempts: u32) {
        let memory = &self.memories[index];
        let filled = match memory.map.origin(page) {
            Origin::Zero => memory.zero(page, 1),
            Origin::Snapshot(source) => {
                let wanted = PageRef {
                    pid: memory.pid,
                    page: source,
                };
                if matches!(self.source.held(wanted), Held::Absent) {
                    self.stats.fetched.fetch_add(1, Ordering::Relaxed);
                    if let Err(e) = self.source.fetch(wanted) {
                        return self.lose(LostPage {
                            pid: wanted.pid,
                            page: source,
                            message: e.message,
                        });
                    }
                }
                match self.source.held(wanted) {
                    Held::Zero => memory.zero(page, 1),
                    Held::Bytes(bytes) => {
                        let filled = memory.copy(page, &bytes[..PAGE as usize]);
                        self.note(wanted, filled);
                        filled
                    }
                    Held::Absent => {
                        let message = "the source has no page after bringing it".to_owned();
                        return self.lose(LostPage {
                            pid: wanted.pid,
                            page: source,
                            message,
                        });
                    }
                }
            }
        };
        match filled {
            Filled::Pages(_) if self.memories[index].map.origin(page) == Origin::Zero => {
                self.stats.zeroed.fetch_add(1, Ordering::Relaxed);
            }
            Filled::Changing => self.pending.push_back((index, page, attempts)),
            Filled::NoMemory if attempts < NO_MEMORY_RETRIES => {
                self.pending.push_back((index, page, attempts + 1));
            }
            Filled::NoMemory => self.lose(LostPage {
                pid: self.memories[index].pid,
                page,
                message: "the host has no memory for it".to_owned(),
            }),
            Filled::Pages(_) | Filled::AlreadyPresent | Filled::Unmapped | Filled::ProcessGone => {}
        }
    }

    fn note(&mut self, page: PageRef, filled: Filled) {
        if !matches!(filled, Filled::Pages(_)) {
            return;
        }
        self.stats.copied.fetch_add(1, Ordering::Relaxed);
        if self.record.on.load(Ordering::Relaxed) && self.recorded.len() < RECORD_MAX && self.recorded.insert(page) {
            self.record.pages.lock().push(page);
        }
    }

    /// Does what the handle asked for; `true` when that is to stop.
    fn obey(&mut self) -> bool {
        // The bell is only a reminder; its count does not matter.
        let _ = self.bell.read();
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Prefetch(pages, done)) => {
                    let filled = self.prefetch(&pages);
                    self.stats.prefetched.fetch_add(filled, Ordering::Relaxed);
                    // Nobody waiting any more is fine.
                    let _ = done.try_send(filled);
                }
                Ok(Command::Stop) | Err(std::sync::mpsc::TryRecvError::Disconnected) => return true,
                Err(std::sync::mpsc::TryRecvError::Empty) => return false,
            }
        }
    }

    /// Copies runs of pages that are consecutive in the list, in the process and in the source.
    fn prefetch(&self, pages: &[PageRef]) -> u64 {
        let mut filled = 0;
        let mut at = 0;
        while at < pages.len() {
            let first = pages[at];
            let run = 1 + pages[at + 1..]
                .iter()
                .zip(1_u64..)
                .take_while(|(p, n)| p.pid == first.pid && p.page == first.page + n)
                .count();
            filled += self.prefetch_run(first, run as u64);
            at += run;
        }
        filled
    }

    fn prefetch_run(&self, first: PageRef, count: u64) -> u64 {
        let Some(memory) = self.memories.iter().find(|m| m.pid == first.pid) else {
            return 0;
        };
        let mut filled = 0;
        let mut done = 0;
        while done < count {
            let page = first.page + done;
            // Only what still lies where it lay: the processes have not run yet.
            let untouched = memory.map.origin(page) == Origin::Snapshot(page);
            let step = match self.source.held(PageRef { pid: first.pid, page }) {
                Held::Bytes(bytes) if untouched => {
                    let length = bytes.len().min(((count - done) * PAGE) as usize);
                    match memory.copy(page, &bytes[..length]) {
                        Filled::Pages(n) => {
                            filled += n;
                            n
                        }
                        Filled::AlreadyPresent | Filled::Unmapped => 1,
                        Filled::Changing | Filled::ProcessGone | Filled::NoMemory => return filled,
                    }
                }
                _ => 1,
            };
            done += step;
        }
        filled
    }

    /// Lets go of memories whose process is gone.
    fn sweep(&mut self) {
        self.memories.retain(Memory::is_alive);
        self.pending.clear();
    }

    fn lose(&mut self, lost: LostPage) {
        if let Some(kill) = self.on_lost.take() {
            kill(lost);
        }
    }
}
