//! The handle to an instance's pager.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::address_map::AddressMap;
use crate::ancestor::Ancestor;
use crate::latency::Latency;
use crate::source::{AheadPage, PageRef, PageSource};
use crate::thread::Thread;

/// Settings of a pager.
pub struct PagerConfig {
    /// Name of the thread.
    pub name: String,
    /// How the pager gets the memory of restored processes.
    pub handover: Handover,
    /// Source of the pages.
    pub source: Arc<dyn PageSource>,
    /// Layout of the memory.
    pub layout: Layout,
    /// What the addresses of a process belong to, where its memory differs from the snapshot's layout. By process id.
    pub maps: HashMap<i32, AddressMap>,
    /// Whether touched pages are recorded, in the order of their faults. Until [`Pager::take_working_set`], only
    /// touched pages are then let in, so that the record is complete.
    pub record: bool,
    /// Time limit for CRIU's connection, and between its messages.
    pub handshake_limit: Duration,
    /// Called once, on the pager's thread, if a page cannot be read. It must kill the instance before it returns: the
    /// thread that waits for the page keeps waiting.
    pub on_lost: Box<dyn FnOnce(LostPage) + Send>,
}

/// How a pager gets the memory of restored processes.
#[derive(Debug)]
pub enum Handover {
    /// CRIU hands it over and registers anonymous memory. Bound to `lazy-pages.socket` in the image directory.
    Socket(UnixListener),
    /// The kernel hands it over when CRIU forks a single process with this id. `Ancestor` is CRIU's own memory. CRIU
    /// does not know about a pager then: it maps everything at its final address at once, and registers nothing.
    Fork(Ancestor, i32),
    /// The caller of [`Pager::prepare`] hands it over. CRIU does not know about a pager here either, and registers
    /// nothing.
    Given,
}

/// The memory of a stopped process.
#[derive(Debug)]
pub struct Given {
    /// Process id at the checkpoint.
    pub pid: i32,
    /// A fresh userfaultfd for it, before any negotiation with the kernel.
    pub userfault: OwnedFd,
}

/// Consecutive pages of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRange {
    /// First page.
    pub first: PageRef,
    /// Number of pages.
    pub pages: u64,
}

/// Memory that CRIU does not register, or registers needlessly.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// Private file mappings. The pager registers them itself before the processes run.
    pub mapped: Vec<PageRange>,
    /// Anonymous memory that the pager registers itself, also before they run: under [`Handover::Fork`], CRIU does not.
    pub anonymous: Vec<PageRange>,
    /// Anonymous memory for which the snapshot holds nothing. It is left to the kernel.
    pub empty: Vec<PageRange>,
    /// Those of `mapped` that the process had mapped from a file, by address. Freed pages read as the file again, which
    /// [`PageSource::file_page`] reads.
    pub backed: Vec<PageRange>,
}

impl Layout {
    /// Page numbers in `backed` of one process.
    pub fn backed_of(&self, pid: i32) -> Arc<[Range<u64>]> {
        let of = self.backed.iter().filter(|b| b.first.pid == pid);
        of.map(|b| b.first.page..b.first.page + b.pages).collect()
    }
}

/// A page that cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("page {page:#x} of process {pid} is lost: {message}")]
pub struct LostPage {
    /// Process id at the checkpoint.
    pub pid: i32,
    /// Page number.
    pub page: u64,
    /// The cause.
    pub message: String,
}

/// Why the pager could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// The thread could not be started.
    #[error("start the pager's thread")]
    Start(#[source] io::Error),
    /// The thread has ended or does not respond.
    #[error("the pager has ended")]
    Ended,
    /// Memory cannot be registered for faults. The processes must not run.
    #[error("{0}")]
    Register(String),
    /// Processes that share the snapshot's memory were forked since the restore.
    #[error("of its processes, {0} were made after it was restored")]
    Forked(usize),
}

/// Result of filling pages while the processes run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilledBehind {
    /// Number of pages filled now.
    pub filled: u64,
    /// Number of pages that could not be filled yet.
    pub left: u64,
}

/// A pager's counters, in pages and events.
#[derive(Debug, Default)]
pub struct Stats {
    /// Faults received.
    pub faults: AtomicU64,
    /// Pages copied to answer faults.
    pub copied: AtomicU64,
    /// Pages of the mapped file let in to answer faults.
    pub let_in: AtomicU64,
    /// Pages filled with zeros.
    pub zeroed: AtomicU64,
    /// Pages copied ahead of any fault.
    pub prefetched: AtomicU64,
    /// Faults that had to wait for the source.
    pub fetched: AtomicU64,
    /// Pages let in or filled with zeros because a neighbour was touched.
    pub around: AtomicU64,
    /// Remove, unmap, remap and fork events.
    pub events: AtomicU64,
    /// Latency of the faults.
    pub latency: Latency,
    /// Times of one-time events.
    pub marks: Mutex<Marks>,
}

/// Times of one-time events in a pager's life, each with its duration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks {
    /// All processes' memory was handed over. The duration is from CRIU's connection to the last descriptor, or from
    /// the kernel's event until the memory was taken.
    pub handshake: Option<(Instant, Duration)>,
    /// The first fault was answered.
    pub first_fault: Option<(Instant, Duration)>,
}

pub(crate) enum Command {
    /// Takes over this memory, registers the memory in the layout, then fills these pages.
    Prepare(Vec<Given>, Arc<[AheadPage]>, SyncSender<Result<Prepared, String>>),
    /// Fills these consecutive pages of a process if they still hold the source's page `origin` and what follows it.
    Fill(PageRange, u64, SyncSender<FilledBehind>),
    /// Reports what the addresses of all processes belong to.
    Report(SyncSender<Result<Vec<(i32, AddressMap)>, usize>>),
    Stop,
}

/// A preparation of memory in progress.
#[derive(Debug)]
pub struct Preparing(Receiver<Result<Prepared, String>>);

/// Memory that is ready.
#[derive(Debug, Clone, Copy)]
pub struct Prepared {
    /// Number of pages filled ahead.
    pub filled: u64,
    /// Start and duration of the preparation.
    pub took: (Instant, Duration),
}

impl Preparing {
    /// Waits for completion, at most `limit`.
    ///
    /// # Errors
    /// If the pager has ended, does not respond in time, or cannot register memory. The processes must not run then.
    pub fn done(self, limit: Duration) -> Result<Prepared, PagerError> {
        let answer = self.0.recv_timeout(limit).map_err(|_| PagerError::Ended)?;
        answer.map_err(PagerError::Register)
    }
}

/// State shared by the thread and its handle.
pub(crate) struct Reach {
    pub(crate) stats: Arc<Stats>,
    pub(crate) record: Arc<FaultLog>,
    pub(crate) bell: Arc<EventFd>,
    pub(crate) inbox: Receiver<Command>,
    pub(crate) on_lost: Option<Box<dyn FnOnce(LostPage) + Send>>,
}

/// The handle to an instance's pager. Dropping it stops the thread. The instance must be dead by then.
pub struct Pager {
    commands: SyncSender<Command>,
    bell: Arc<EventFd>,
    stats: Arc<Stats>,
    record: Arc<FaultLog>,
}

#[derive(Default)]
pub(crate) struct FaultLog {
    pub(crate) on: AtomicBool,
    pub(crate) pages: Mutex<Vec<PageRef>>,
}

impl Pager {
    /// Starts the thread, which waits for CRIU.
    ///
    /// # Errors
    /// If no thread or descriptor is available.
    pub fn start(config: PagerConfig) -> Result<Self, PagerError> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| PagerError::Start(e.into()))?;
        let bell = Arc::new(bell);
        let (commands, inbox) = sync_channel(4);
        let stats = Arc::new(Stats::default());
        let record = Arc::new(FaultLog::default());
        record.on.store(config.record, Ordering::Relaxed);
        let mut name = config.name.clone();
        name.truncate(15);
        let worker = Thread::new(
            config.source,
            config.layout,
            config.maps,
            Reach {
                stats: Arc::clone(&stats),
                record: Arc::clone(&record),
                bell: Arc::clone(&bell),
                inbox,
                on_lost: Some(config.on_lost),
            },
            config.handshake_limit,
        )
        .map_err(PagerError::Start)?;
        let handover = config.handover;
        thread::Builder::new()
            .name(name)
            .stack_size(256 * 1024)
            .spawn(move || worker.run(handover))
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

    /// Prepares the memory before the processes run: registers the memory in the layout and fills `pages` ahead of any
    /// fault, as far as the source holds them. `given` is the memory for [`Handover::Given`]. Must be called once, when
    /// the processes have all their mappings and have not run any code of their own. Does not wait for completion.
    ///
    /// # Errors
    /// If the pager has ended. The processes must not run then.
    pub fn prepare(&self, given: Vec<Given>, pages: Arc<[AheadPage]>) -> Result<Preparing, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Prepare(given, pages, done))?;
        Ok(Preparing(answer))
    }

    /// Fills pages while the processes run, from what the source holds. The first of `pages` must still hold the
    /// source's page `origin`, and each following page what follows it. Others are not filled. Blocks until done, at
    /// most `limit`.
    ///
    /// # Errors
    /// If the pager has ended or does not respond in time.
    pub fn fill(&self, pages: PageRange, origin: u64, limit: Duration) -> Result<FilledBehind, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Fill(pages, origin, done))?;
        answer.recv_timeout(limit).map_err(|_| PagerError::Ended)
    }

    /// What the addresses of each process belong to, by process id. Must be called while the processes are stopped, so
    /// that the result is complete. Blocks, at most `limit`.
    ///
    /// # Errors
    /// If the pager has ended or does not respond in time. `Forked` if it cannot tell the processes apart.
    pub fn maps(&self, limit: Duration) -> Result<Vec<(i32, AddressMap)>, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Report(done))?;
        let answer = answer.recv_timeout(limit).map_err(|_| PagerError::Ended)?;
        answer.map_err(PagerError::Forked)
    }

    /// Ends the recording and returns the touched pages, in the order of their faults.
    pub fn take_working_set(&self) -> Vec<PageRef> {
        self.record.on.store(false, Ordering::Relaxed);
        let mut pages = std::mem::take(&mut *self.record.pages.lock());
        // A page touched by two processes of an instance faults in each.
        let mut seen = HashSet::with_capacity(pages.len());
        pages.retain(|page| seen.insert(*page));
        pages
    }

    /// The pager's counters.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // If the inbox is full or the thread gone, dropping the sender has the same effect.
        let _ = self.tell(Command::Stop);
        let _ = self.bell.write(1);
    }
}
