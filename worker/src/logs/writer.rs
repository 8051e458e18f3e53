//! The one thread that writes log files. Instances pass it lines through a bounded queue and never wait for the disk:
//! lines that do not fit are dropped and counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use parking_lot::Mutex;
use rekindle_wire::FunctionId;
use rekindle_wire::api::LogLine;
use tokio::sync::{broadcast, oneshot};

use super::files::{FilesSnapshot, LogFiles};

/// Maximum number of batches of lines that wait for the disk.
const QUEUE: usize = 1024;
/// Maximum number of lines that a following reader may be behind: two bursts of an instance.
const FOLLOW_LINES: usize = 4096;

/// One function's logs: its files, and those who follow them.
#[derive(Debug)]
pub(super) struct FunctionLog {
    function: FunctionId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    files: LogFiles,
    /// `None` while nobody follows.
    followers: Option<broadcast::Sender<Arc<LogLine>>>,
    /// Whether lines of instances that outlive the function are discarded.
    deleted: bool,
    failing: bool,
}

impl FunctionLog {
    pub(super) fn new(function: FunctionId, files: LogFiles) -> Self {
        let state = State {
            files,
            followers: None,
            deleted: false,
            failing: false,
        };
        Self {
            function,
            state: Mutex::new(state),
        }
    }

    pub(super) fn snapshot(&self) -> io::Result<FilesSnapshot> {
        self.state.lock().files.snapshot()
    }

    /// Returns the contents of the files, and everything that comes after: no line twice, none left out.
    pub(super) fn snapshot_and_follow(&self) -> io::Result<(FilesSnapshot, broadcast::Receiver<Arc<LogLine>>)> {
        let mut state = self.state.lock();
        let snapshot = state.files.snapshot()?;
        let followers = state
            .followers
            .get_or_insert_with(|| broadcast::channel(FOLLOW_LINES).0);
        Ok((snapshot, followers.subscribe()))
    }

    fn append(&self, lines: Vec<LogLine>) {
        let mut state = self.state.lock();
        if state.deleted {
            return;
        }
        match state.files.append(lines.iter()) {
            Ok(()) => state.failing = false,
            Err(error) if !state.failing => {
                state.failing = true;
                let directory = state.files.directory().display();
                tracing::warn!(
                    function = %self.function, %directory, %error,
                    "cannot write logs: lines are lost until the disk takes them again"
                );
            }
            Err(_) => {}
        }
        if let Some(followers) = &state.followers {
            if followers.receiver_count() == 0 {
                state.followers = None;
            } else {
                for line in lines {
                    // This fails only when the last reader has just gone.
                    let _ = followers.send(Arc::new(line));
                }
            }
        }
    }

    fn delete(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.deleted = true;
        state.followers = None;
        state.files.delete()
    }
}

enum Command {
    Append(Arc<FunctionLog>, Vec<LogLine>),
    Delete(Arc<FunctionLog>, oneshot::Sender<io::Result<()>>),
    /// Answered when everything that was queued before is in the files.
    Flush(oneshot::Sender<()>),
}

/// The handle to the thread, which ends when the last handle is gone and the queue is empty.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    queue: SyncSender<Command>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    pub(super) fn start() -> io::Result<Self> {
        let (queue, commands) = sync_channel(QUEUE);
        thread::Builder::new()
            .name("logs".to_owned())
            .spawn(move || write(&commands))?;
        Ok(Self {
            queue,
            dropped: Arc::default(),
        })
    }

    /// Counts lines that will not be written.
    pub(super) fn note_dropped(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the number of lines that were not written.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Queues lines. Gives them back when the queue is full.
    pub(super) fn append(&self, log: &Arc<FunctionLog>, lines: Vec<LogLine>) -> Result<(), Vec<LogLine>> {
        match self.queue.try_send(Command::Append(Arc::clone(log), lines)) {
            Err(
                TrySendError::Full(Command::Append(_, lines)) | TrySendError::Disconnected(Command::Append(_, lines)),
            ) => Err(lines),
            _ => Ok(()),
        }
    }

    /// Waits until everything queued so far is in the files. Does not wait if the queue has no room.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.queue.try_send(Command::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }

    pub(super) async fn delete(&self, log: Arc<FunctionLog>) -> io::Result<()> {
        let (done, deleted) = oneshot::channel();
        match self.queue.try_send(Command::Delete(log, done)) {
            Ok(()) => deleted
                .await
                .unwrap_or_else(|_| Err(io::Error::other("the log writer has ended"))),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "the log writer is behind: try again",
            )),
        }
    }
}

fn write(commands: &Receiver<Command>) {
    for command in commands {
        match command {
            Command::Append(log, lines) => log.append(lines),
            // It does not matter if nobody waits for the reply any more.
            Command::Delete(log, done) => drop(done.send(log.delete())),
            Command::Flush(done) => drop(done.send(())),
        }
    }
}
