//! What the handle of a pager and its thread tell each other.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use parking_lot::Mutex;

use crate::address_map::AddressMap;
use crate::ancestor::Ancestor;
use crate::layout::PageRange;
use crate::source::{AheadPage, PageRef};
use crate::stats::Stats;

/// How a pager gets the memory of restored processes.
#[derive(Debug)]
pub enum Handover {
    /// CRIU hands it over and registers anonymous memory. Bound to `lazy-pages.socket` in the image directory.
    Socket(UnixListener),
    /// The kernel hands it over when CRIU forks a single process with this id. `Ancestor` is CRIU's own memory. CRIU
    /// does not know about a pager then: it maps everything at its final address at once, and registers nothing.
    Fork(Ancestor, i32),
    /// The caller of [`Pager::prepare`](crate::Pager::prepare) hands it over. CRIU does not know about a pager here
    /// either, and registers nothing.
    Given,
}

/// The memory of a stopped process.
#[derive(Debug)]
pub struct StoppedProcess {
    /// Process id at the checkpoint.
    pub pid: i32,
    /// A fresh userfaultfd for it, before any negotiation with the kernel.
    pub userfault: OwnedFd,
}

pub(crate) enum Command {
    /// Takes over this memory, registers the memory in the layout, then fills these pages.
    Prepare(
        Vec<StoppedProcess>,
        Arc<[AheadPage]>,
        SyncSender<Result<PreparedMemory, String>>,
    ),
    /// Fills these consecutive pages of a process if they still hold the source's page `origin` and what follows it.
    Fill(PageRange, u64, SyncSender<BackgroundFill>),
    /// Reports what the addresses of all processes belong to.
    Report(SyncSender<Result<Vec<(i32, AddressMap)>, usize>>),
    Stop,
}

/// Memory that is ready.
#[derive(Debug, Clone, Copy)]
pub struct PreparedMemory {
    /// Number of pages filled ahead.
    pub filled: u64,
    /// Start and duration of the preparation.
    pub took: (Instant, Duration),
}

/// Result of filling pages while the processes run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackgroundFill {
    /// Number of pages filled now.
    pub filled: u64,
    /// Number of pages that could not be filled yet.
    pub left: u64,
}

/// A page that cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("page {page:#x} of process {pid} is lost: {message}")]
pub struct LostPage {
    /// Process id at the checkpoint.
    pub pid: i32,
    /// Page number (address / 4096).
    pub page: u64,
    /// The cause.
    pub message: String,
}

/// State shared by the thread and its handle.
pub(crate) struct ThreadShared {
    pub(crate) stats: Arc<Stats>,
    pub(crate) record: Arc<FaultLog>,
    pub(crate) bell: Arc<EventFd>,
    pub(crate) inbox: Receiver<Command>,
    pub(crate) on_lost: Option<Box<dyn FnOnce(LostPage) + Send>>,
}

#[derive(Default)]
pub(crate) struct FaultLog {
    pub(crate) on: AtomicBool,
    pub(crate) pages: Mutex<Vec<PageRef>>,
}
