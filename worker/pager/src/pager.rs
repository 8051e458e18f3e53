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

/// What a pager is started with.
pub struct PagerConfig {
    /// Names the thread.
    pub name: String,
    /// How it gets the memory of what CRIU restores.
    pub handover: Handover,
    /// Where pages come from.
    pub source: Arc<dyn PageSource>,
    /// How the memory is laid out.
    pub layout: Layout,
    /// What the addresses of a process belong to, where its memory is not as the snapshot's was; by process id.
    pub maps: HashMap<i32, AddressMap>,
    /// Whether the pages that are touched are recorded, in the order of their faults. Until [`Pager::take_working_set`] nothing is then
    /// let in but what is touched, so that the record has it all.
    pub record: bool,
    /// How long CRIU may take to connect, and between its words.
    pub handshake_limit: Duration,
    /// Called once, on the pager's thread, when a page cannot be had. It must kill the instance before it returns: the
    /// thread that waits for the page waits on.
    pub on_lost: Box<dyn FnOnce(LostPage) + Send>,
}

/// How a pager gets the memory of what CRIU restores.
#[derive(Debug)]
pub enum Handover {
    /// CRIU hands it over and registers what is anonymous: bound to `lazy-pages.socket` in the image directory.
    Socket(UnixListener),
    /// The kernel does, when CRIU, whose own memory this is of, forks: of one process, with this id. CRIU is told nothing of a pager then, maps everything
    /// where it belongs at once, and registers nothing.
    Fork(Ancestor, i32),
    /// Whoever calls [`Pager::prepare`] does. CRIU is told as little, and registers as little.
    Given,
}

/// The memory of a process that stands still.
#[derive(Debug)]
pub struct Given {
    /// Its id at the checkpoint.
    pub pid: i32,
    /// A fresh userfaultfd of it: nothing has been agreed on with the kernel.
    pub userfault: OwnedFd,
}

/// Consecutive pages of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRange {
    /// The first.
    pub first: PageRef,
    /// How many.
    pub pages: u64,
}

/// What CRIU does not register, or registers needlessly.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// Private mappings of a file: the pager registers them itself before the processes run.
    pub mapped: Vec<PageRange>,
    /// Anonymous memory that the pager registers itself, likewise: by [`Handover::Fork`] CRIU does not.
    pub anonymous: Vec<PageRange>,
    /// Anonymous memory of which the snapshot holds nothing: left to the kernel.
    pub empty: Vec<PageRange>,
    /// Those of the mapped, by address, that the process had mapped from a file: what it gives up reads as the file again,
    /// which [`PageSource::file_page`] has.
    pub backed: Vec<PageRange>,
}

impl Layout {
    /// Page numbers in `backed` of one process.
    pub fn backed_of(&self, pid: i32) -> Arc<[Range<u64>]> {
        let of = self.backed.iter().filter(|b| b.first.pid == pid);
        of.map(|b| b.first.page..b.first.page + b.pages).collect()
    }
}

/// A page that cannot be had.
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

/// Why the pager could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// The thread could not be started.
    #[error("start the pager's thread")]
    Start(#[source] io::Error),
    /// It ended, or does not answer.
    #[error("the pager has ended")]
    Ended,
    /// Memory cannot be watched for faults; the processes must not run.
    #[error("{0}")]
    Register(String),
    /// Processes were made since the restore that share the snapshot's memory.
    #[error("it has {0} processes that it made since it was restored")]
    Forked(usize),
}

/// What became of pages that were to be filled while the processes run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilledBehind {
    /// How many were filled now.
    pub filled: u64,
    /// How many could not be filled yet.
    pub left: u64,
}

/// What a pager has done, in pages and events.
#[derive(Debug, Default)]
pub struct Stats {
    /// Faults taken.
    pub faults: AtomicU64,
    /// Pages copied in answer to faults.
    pub copied: AtomicU64,
    /// Pages of the mapped file let in, in answer to faults.
    pub let_in: AtomicU64,
    /// Pages of zeros given.
    pub zeroed: AtomicU64,
    /// Pages copied ahead of any fault.
    pub prefetched: AtomicU64,
    /// Faults that had to wait for the source.
    pub fetched: AtomicU64,
    /// Pages let in, or given as zeros, because a neighbour was touched.
    pub around: AtomicU64,
    /// Remove, unmap, remap and fork events.
    pub events: AtomicU64,
    /// How long faults took.
    pub latency: Latency,
    /// When what happens once did.
    pub marks: Mutex<Marks>,
}

/// When what happens once in a pager's life did, each with how long it took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks {
    /// The memory of all processes was handed over: from CRIU's connection to the last descriptor, or from when the kernel told of it until that was
    /// taken.
    pub handshake: Option<(Instant, Duration)>,
    /// The first fault was answered.
    pub first_fault: Option<(Instant, Duration)>,
}

pub(crate) enum Command {
    /// Takes this memory over and registers what the layout says, then fills these pages.
    Prepare(Vec<Given>, Arc<[AheadPage]>, SyncSender<Result<Prepared, String>>),
    /// Fills these pages, consecutive ones of a process by address, if they still hold what `origin` says.
    Fill(PageRange, u64, SyncSender<FilledBehind>),
    /// Tells what the addresses of all processes belong to.
    Report(SyncSender<Result<Vec<(i32, AddressMap)>, usize>>),
    Stop,
}

/// Memory that is being made ready.
#[derive(Debug)]
pub struct Preparing(Receiver<Result<Prepared, String>>);

/// Memory that is ready.
#[derive(Debug, Clone, Copy)]
pub struct Prepared {
    /// How many pages were filled ahead.
    pub filled: u64,
    /// When it was begun, and how long it took.
    pub took: (Instant, Duration),
}

impl Preparing {
    /// Waits until it is done, at most `limit`.
    ///
    /// # Errors
    /// When the pager has ended, does not answer in time, or cannot register; the processes must not run then.
    pub fn done(self, limit: Duration) -> Result<Prepared, PagerError> {
        let answer = self.0.recv_timeout(limit).map_err(|_| PagerError::Ended)?;
        answer.map_err(PagerError::Register)
    }
}

/// What the thread and its handle share.
pub(crate) struct Reach {
    pub(crate) stats: Arc<Stats>,
    pub(crate) record: Arc<FaultLog>,
    pub(crate) bell: Arc<EventFd>,
    pub(crate) inbox: Receiver<Command>,
    pub(crate) on_lost: Option<Box<dyn FnOnce(LostPage) + Send>>,
}

/// The handle to an instance's pager. Dropping it stops the thread; the instance must be dead by then.
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
    /// When no thread or descriptor can be had.
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

    /// Makes the memory ready for the processes to run: registers what the layout says, and fills `pages` ahead of
    /// any fault, as far as the source holds them. `given` is the memory by [`Handover::Given`]. To be called once,
    /// when the processes have all their mappings and nothing of their own has run yet. Does not wait for it.
    ///
    /// # Errors
    /// When the pager has ended; the processes must not run then.
    pub fn prepare(&self, given: Vec<Given>, pages: Arc<[AheadPage]>) -> Result<Preparing, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Prepare(given, pages, done))?;
        Ok(Preparing(answer))
    }

    /// Fills pages while the processes run, from what the source holds: `pages`, by address, as far as the first still holds the
    /// source's page `origin` and those behind it what follows. Blocks until done, at most `limit`.
    ///
    /// # Errors
    /// When the pager has ended or does not answer in time.
    pub fn fill(&self, pages: PageRange, origin: u64, limit: Duration) -> Result<FilledBehind, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Fill(pages, origin, done))?;
        answer.recv_timeout(limit).map_err(|_| PagerError::Ended)
    }

    /// What the addresses of each process belong to, by process id. To be asked while the processes stand still: then it is
    /// all that happened. Blocks, at most `limit`.
    ///
    /// # Errors
    /// When the pager has ended or does not answer in time; `Forked` when it cannot tell the processes apart.
    pub fn maps(&self, limit: Duration) -> Result<Vec<(i32, AddressMap)>, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Report(done))?;
        let answer = answer.recv_timeout(limit).map_err(|_| PagerError::Ended)?;
        answer.map_err(PagerError::Forked)
    }

    /// Ends the recording and answers the pages that were touched, in the order of their faults.
    pub fn take_working_set(&self) -> Vec<PageRef> {
        self.record.on.store(false, Ordering::Relaxed);
        let mut pages = std::mem::take(&mut *self.record.pages.lock());
        // A page that two processes of an instance touch faults in each.
        let mut seen = HashSet::with_capacity(pages.len());
        pages.retain(|page| seen.insert(*page));
        pages
    }

    /// What it has done.
    pub fn stats(&self) -> &Arc<Stats> {
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
