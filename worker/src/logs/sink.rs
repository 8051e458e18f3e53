//! Carries the output of one instance from its pipes to its function's log.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rekindle_wire::api::{LogLine, LogStream};
use rekindle_wire::clock::unix_ms;
use rekindle_wire::{InstanceId, VersionNumber};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::LogLimits;
use super::lines::{LineSplitter, cut};
use super::rate::TokenBucket;
use super::writer::{FunctionLog, Writer};

/// Bytes taken from a pipe at once: all that it holds by default.
const READ_BYTES: usize = 64 * 1024;
/// What a read counts for at least. Reading a single byte takes a microsecond or more.
const READ_BYTES_LEAST: u32 = 1024;
/// How long dropped lines may go unreported, and the minimum interval of notices: few lines of a flood pass, and
/// notices must not outnumber them.
const TELL_DROPS: Duration = Duration::from_secs(1);

/// The destination of an instance's lines. Clones share the same sink.
#[derive(Debug, Clone)]
pub struct Sink {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    writer: Writer,
    log: Arc<FunctionLog>,
    version: VersionNumber,
    instance: InstanceId,
    limits: LogLimits,
    state: Mutex<State>,
    /// Number of pipes being read.
    open: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    bucket: TokenBucket,
    /// Bytes that may be read.
    bytes: TokenBucket,
    /// Whether it was said that the function waits for its output to be read.
    said_it_waits: bool,
    dropped: u64,
    /// When the last notice was.
    told: Option<Instant>,
    newest: VecDeque<LogLine>,
}

impl Sink {
    pub(super) fn new(
        writer: Writer,
        log: Arc<FunctionLog>,
        version: VersionNumber,
        instance: InstanceId,
        limits: LogLimits,
    ) -> Self {
        let now = Instant::now();
        let state = Mutex::new(State {
            bucket: TokenBucket::new(limits.lines_per_second, limits.burst_lines, now),
            bytes: TokenBucket::new(limits.bytes_per_second, limits.burst_bytes, now),
            said_it_waits: false,
            dropped: 0,
            told: None,
            newest: VecDeque::new(),
        });
        let open = watch::Sender::new(0);
        Self {
            inner: Arc::new(Inner {
                writer,
                log,
                version,
                instance,
                limits,
                state,
                open,
            }),
        }
    }

    /// Reads `pipe` (a read end) in a task until nobody holds its write end any more, at most
    /// [`LogLimits::bytes_per_second`].
    ///
    /// # Errors
    /// Returns an error when `pipe` is not the read end of a pipe. Must be called inside a tokio runtime.
    pub fn attach(&self, stream: LogStream, pipe: OwnedFd) -> io::Result<()> {
        let receiver = pipe::Receiver::from_owned_fd(pipe)?;
        let inner = Arc::clone(&self.inner);
        inner.open.send_modify(|n| *n += 1);
        tokio::spawn(async move {
            // This also happens when the runtime shuts down, so that nobody waits for this pipe.
            let _closed = OpenPipeGuard(&inner.open);
            inner.drain(stream, receiver).await;
        });
        Ok(())
    }

    /// Adds a line of the platform's own about this instance.
    pub fn platform(&self, text: impl Into<String>) {
        let mut lines = Vec::new();
        let mut splitter = LineSplitter::new(self.inner.limits.line_bytes);
        splitter.push(text.into().as_bytes(), |text| {
            lines.push(self.inner.line(LogStream::Platform, text))
        });
        splitter.finish(|text| lines.push(self.inner.line(LogStream::Platform, text)));
        self.inner.queue(lines);
    }

    /// Returns the function's newest `count` lines, oldest first; at most [`LogLimits::kept_lines`]. They include lines
    /// that the rate limit dropped from the log, and none of the platform's own.
    pub fn tail(&self, count: usize) -> Vec<LogLine> {
        let newest = &self.inner.state.lock().newest;
        newest
            .iter()
            .skip(newest.len().saturating_sub(count))
            .cloned()
            .collect()
    }

    /// Waits until all attached pipes have ended, so that [`Sink::tail`] has the last words of a process that has just
    /// died. Returns false if `limit` passed first, since somebody still holds a write end.
    pub async fn drained(&self, limit: Duration) -> bool {
        let mut open = self.inner.open.subscribe();
        matches!(tokio::time::timeout(limit, open.wait_for(|n| *n == 0)).await, Ok(Ok(_)))
    }
}

struct OpenPipeGuard<'a>(&'a watch::Sender<usize>);

impl Drop for OpenPipeGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Inner {
    async fn drain(&self, stream: LogStream, mut pipe: pipe::Receiver) {
        let mut splitter = LineSplitter::new(self.limits.line_bytes);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            // Drops are reported when the next line passes, or after a while if none comes.
            let read = if self.state.lock().dropped > 0 {
                match tokio::time::timeout(TELL_DROPS, pipe.read(&mut buffer)).await {
                    Ok(read) => read,
                    Err(_) => {
                        self.accept(Vec::new(), true);
                        continue;
                    }
                }
            } else {
                pipe.read(&mut buffer).await
            };
            match read {
                Ok(length) if length > 0 => {
                    self.take_in(stream, &mut splitter, &buffer[..length]);
                    match self.spend(length) {
                        // A function that never stops writing must leave this thread to others.
                        Duration::ZERO => tokio::task::yield_now().await,
                        // The pipe fills meanwhile, and then the function waits.
                        wait => tokio::time::sleep(wait).await,
                    }
                }
                // The end, or a failure (never seen with a pipe): nothing more will come.
                _ => {
                    let mut lines = Vec::new();
                    splitter.finish(|text| lines.push(self.line(stream, text)));
                    self.accept(lines, true);
                    return;
                }
            }
        }
    }

    /// Counts `length` bytes as read. Returns how long to leave the pipes unread.
    fn spend(&self, length: usize) -> Duration {
        let read = u32::try_from(length).unwrap_or(u32::MAX).max(READ_BYTES_LEAST);
        let mut state = self.state.lock();
        let wait = state.bytes.spend(read, Instant::now());
        if !wait.is_zero() && !std::mem::replace(&mut state.said_it_waits, true) {
            drop(state);
            let kib = self.limits.bytes_per_second >> 10;
            let said = format!("its output is read at {kib} KiB a second at most, so the function waits as it writes");
            self.queue(vec![self.line(LogStream::Platform, said)]);
        }
        wait
    }

    /// Takes in a part of a stream. Of the lines above the rate limit, only the newest are built; the rest are counted.
    fn take_in(&self, stream: LogStream, splitter: &mut LineSplitter, bytes: &[u8]) {
        let allowed = self.state.lock().bucket.available(Instant::now());
        let parts = cut(bytes, allowed, self.limits.kept_lines);
        for (part, dropped_before) in [(parts.head, 0), (parts.tail, parts.skipped)] {
            self.state.lock().dropped += dropped_before;
            let mut lines = Vec::new();
            splitter.push(part, |text| lines.push(self.line(stream, text)));
            self.accept(lines, false);
        }
    }

    fn line(&self, stream: LogStream, text: String) -> LogLine {
        LogLine {
            unix_ms: unix_ms(),
            instance: self.instance.clone(),
            version: self.version,
            stream,
            text,
        }
    }

    fn remember(&self, lines: &[LogLine]) {
        let newest = &mut self.state.lock().newest;
        let kept = self.limits.kept_lines;
        newest.extend(lines.iter().skip(lines.len().saturating_sub(kept)).cloned());
        let surplus = newest.len().saturating_sub(kept);
        newest.drain(..surplus);
    }

    /// Passes on the lines that the rate limit allows. With `tell`, it reports dropped lines now.
    fn accept(&self, lines: Vec<LogLine>, tell: bool) {
        self.remember(&lines);
        let now = Instant::now();
        let mut passed = Vec::with_capacity(lines.len());
        {
            let mut state = self.state.lock();
            for line in lines {
                if state.bucket.take(now) {
                    let is_due = state.told.is_none_or(|told| now - told >= TELL_DROPS);
                    passed.extend(is_due.then(|| self.notice_of_drops(&mut state, now)).flatten());
                    passed.push(line);
                } else {
                    state.dropped += 1;
                }
            }
            passed.extend(tell.then(|| self.notice_of_drops(&mut state, now)).flatten());
        }
        self.queue(passed);
    }

    /// The notice of the lines that were dropped since the last one, if any were.
    fn notice_of_drops(&self, state: &mut State, now: Instant) -> Option<LogLine> {
        let count = std::mem::take(&mut state.dropped);
        (count > 0).then(|| {
            state.told = Some(now);
            self.writer.note_dropped(count);
            let limit = self.limits.lines_per_second;
            let text = format!("{count} lines were dropped: an instance may log {limit} lines a second");
            self.line(LogStream::Platform, text)
        })
    }

    fn queue(&self, lines: Vec<LogLine>) {
        if lines.is_empty() {
            return;
        }
        if let Err(lines) = self.writer.append(&self.log, lines) {
            // The disk is slower than the functions, which is reported in the same way.
            self.state.lock().dropped += lines.len() as u64;
        }
    }
}
