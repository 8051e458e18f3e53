//! The output of instances, which users read with `fn logs`.
//!
//! ```text
//!  pipe ─► Sink::attach: lines ─► rate limit ─► queue ─► writer thread ─► DIR/FUNCTION/current.ndjson, 1.ndjson
//!                          │                                        └───► followers
//!                          └─► the instance's newest lines, for error messages
//! ```
//!
//! Neither the queues nor the disk hold a function up: lines that do not fit are dropped and reported. Beyond a rate of
//! bytes its pipes are left unread, so that it waits: reading takes the worker's processor time, not the function's.

mod files;
mod follow;
mod lines;
mod rate;
mod sink;
pub(crate) mod telling;
mod writer;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::{Stream, StreamExt as _};
use parking_lot::Mutex;
use rekindle_wire::api::LogLine;
use rekindle_wire::{FunctionId, InstanceId, VersionNumber};
use tokio_util::sync::CancellationToken;

use files::{FilesSnapshot, LogFiles};
use writer::{FunctionLog, Writer};

pub use sink::Sink;

/// Limits of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Size of a function's current file at which another is begun, in bytes.
    pub file_bytes: u64,
    /// Maximum number of files of a function, the current one included.
    pub files: usize,
    /// Maximum length of a line, in bytes; a longer one becomes several.
    pub line_bytes: usize,
    /// Sustained number of lines of one instance in a second.
    pub lines_per_second: u32,
    /// Maximum burst of lines of one instance.
    pub burst_lines: u32,
    /// Sustained number of bytes read from one instance in a second.
    pub bytes_per_second: u32,
    /// Maximum burst of bytes of one instance.
    pub burst_bytes: u32,
    /// Number of newest lines of one instance kept in memory.
    pub kept_lines: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            file_bytes: 8 << 20,
            files: 2,
            line_bytes: 16 << 10,
            lines_per_second: 1_000,
            burst_lines: 2_000,
            bytes_per_second: 4 << 20,
            burst_bytes: 16 << 20,
            kept_lines: 100,
        }
    }
}

/// Why logs cannot be opened, read or deleted.
#[derive(Debug, thiserror::Error)]
#[error("{action} logs in {}", .path.display())]
pub struct LogError {
    /// The attempted action.
    pub action: &'static str,
    /// The directory.
    pub path: PathBuf,
    /// The error.
    #[source]
    pub source: io::Error,
}

/// The logs of every function that ran here. Clones share the same logs.
#[derive(Debug, Clone)]
pub struct Logs {
    directory: Arc<Path>,
    limits: LogLimits,
    writer: Writer,
    functions: Arc<Mutex<HashMap<FunctionId, Arc<FunctionLog>>>>,
    /// Ends the streams of those who follow.
    ending: CancellationToken,
}

impl Logs {
    /// Opens the logs in `directory`, which is created if missing. Starts the writer thread.
    ///
    /// # Errors
    /// Returns an error when the directory cannot be created.
    pub fn open(directory: &Path, limits: LogLimits) -> Result<Self, LogError> {
        let failed = |source| LogError {
            action: "open",
            path: directory.to_owned(),
            source,
        };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let writer = Writer::start().map_err(failed)?;
        Ok(Self {
            directory: directory.into(),
            limits,
            writer,
            functions: Arc::default(),
            ending: CancellationToken::new(),
        })
    }

    fn log(&self, function: &FunctionId) -> Arc<FunctionLog> {
        let mut functions = self.functions.lock();
        let new = || {
            let directory = self.directory.join(function.as_str());
            let files = LogFiles::new(directory, self.limits.file_bytes, self.limits.files);
            Arc::new(FunctionLog::new(function.clone(), files))
        };
        Arc::clone(functions.entry(function.clone()).or_insert_with(new))
    }

    /// Returns the number of lines that were dropped and reported in their functions' logs.
    pub fn dropped(&self) -> u64 {
        self.writer.dropped()
    }

    /// Returns the sink for the lines of an instance.
    pub fn sink(&self, function: &FunctionId, version: VersionNumber, instance: InstanceId) -> Sink {
        Sink::new(self.writer.clone(), self.log(function), version, instance, self.limits)
    }

    fn failed<'a>(&'a self, action: &'static str, function: &'a FunctionId) -> impl Fn(io::Error) -> LogError + 'a {
        move |source| LogError {
            action,
            path: self.directory.join(function.as_str()),
            source,
        }
    }

    /// Returns the newest `tail` lines of a function, oldest first.
    ///
    /// # Errors
    /// Returns an error when the files cannot be read. A function without logs has no lines.
    pub async fn read(&self, function: &FunctionId, tail: usize) -> Result<Vec<LogLine>, LogError> {
        self.writer.flush().await;
        let failed = self.failed("read", function);
        let snapshot = self.log(function).snapshot().map_err(&failed)?;
        read_tail(snapshot, tail).await.map_err(failed)
    }

    /// Returns the newest `tail` lines of a function, oldest first, then every new one as it is written, until the
    /// function's logs are deleted.
    ///
    /// # Errors
    /// Returns an error when the files cannot be read.
    pub async fn follow(
        &self,
        function: &FunctionId,
        tail: usize,
    ) -> Result<impl Stream<Item = LogLine> + Send + 'static + use<>, LogError> {
        let failed = self.failed("read", function);
        let (snapshot, coming) = self.log(function).snapshot_and_follow().map_err(&failed)?;
        let past = read_tail(snapshot, tail).await.map_err(failed)?;
        let ended = self.ending.clone().cancelled_owned();
        Ok(follow::follow(past, coming).take_until(ended))
    }

    /// Ends the streams of those who follow, for shutdown: a connection with one would stay open.
    pub fn end_follows(&self) {
        self.ending.cancel();
    }

    /// Removes a function's logs. Further output of its instances is discarded.
    ///
    /// # Errors
    /// Returns an error when the files cannot be removed.
    pub async fn delete(&self, function: &FunctionId) -> Result<(), LogError> {
        let log = self.log(function);
        self.writer.delete(log).await.map_err(self.failed("delete", function))?;
        self.functions.lock().remove(function);
        Ok(())
    }
}

/// Reads on a thread where blocking is allowed.
async fn read_tail(snapshot: FilesSnapshot, tail: usize) -> io::Result<Vec<LogLine>> {
    tokio::task::spawn_blocking(move || snapshot.tail(tail))
        .await
        .map_err(io::Error::other)?
}

#[cfg(test)]
mod tests;
