//! The handle to an instance's pager.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::address_map::AddressMap;
use crate::command::{
    BackgroundFill, Command, FaultLog, Handover, LostPage, PreparedMemory, StoppedProcess, ThreadShared,
};
use crate::layout::{Layout, PageRange};
use crate::source::{AheadPage, PageRef, PageSource};
use crate::stats::Stats;
use crate::thread::PagerThread;

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

/// A preparation of memory in progress.
#[derive(Debug)]
pub struct PendingPreparation(Receiver<Result<PreparedMemory, String>>);

impl PendingPreparation {
    /// Waits for completion, at most `limit`.
    ///
    /// # Errors
    /// If the pager has ended, does not respond in time, or cannot register memory. The processes must not run then.
    pub fn done(self, limit: Duration) -> Result<PreparedMemory, PagerError> {
        let answer = self.0.recv_timeout(limit).map_err(|_| PagerError::Ended)?;
        answer.map_err(PagerError::Register)
    }
}

/// The handle to an instance's pager. Dropping it stops the thread. The instance must be dead by then.
pub struct Pager {
    commands: SyncSender<Command>,
    bell: Arc<EventFd>,
    stats: Arc<Stats>,
    record: Arc<FaultLog>,
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
        let worker = PagerThread::new(
            config.source,
            config.layout,
            config.maps,
            ThreadShared {
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
    pub fn prepare(
        &self,
        given: Vec<StoppedProcess>,
        pages: Arc<[AheadPage]>,
    ) -> Result<PendingPreparation, PagerError> {
        let (done, answer) = sync_channel(1);
        self.tell(Command::Prepare(given, pages, done))?;
        Ok(PendingPreparation(answer))
    }

    /// Fills pages while the processes run, from what the source holds. The first of `pages` must still hold the
    /// source's page `origin`, and each following page what follows it. Others are not filled. Blocks until done, at
    /// most `limit`.
    ///
    /// # Errors
    /// If the pager has ended or does not respond in time.
    pub fn fill(&self, pages: PageRange, origin: u64, limit: Duration) -> Result<BackgroundFill, PagerError> {
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

    /// How often the processes have freed, unmapped or moved memory, or forked. Complete while they are stopped: the
    /// kernel holds whoever does so until the pager has read of it. Blocks, at most `limit`.
    ///
    /// # Errors
    /// If the pager does not get to count what it has read.
    pub fn changes(&self, limit: Duration) -> Result<u64, PagerError> {
        let _taken = self.stats.taking.try_lock_for(limit).ok_or(PagerError::Ended)?;
        Ok(self.stats.events.load(Ordering::Relaxed))
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
