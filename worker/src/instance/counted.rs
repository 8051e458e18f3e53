//! A connection whose bytes are counted.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rekindle_relay::Watcher;
use rekindle_rewind::Exchanged;

/// How many bytes went over a connection.
#[derive(Debug, Default)]
pub(super) struct ByteCounts {
    sent: AtomicU64,
    read: AtomicU64,
    is_closed: AtomicBool,
}

impl ByteCounts {
    pub(super) fn get(&self) -> Exchanged {
        Exchanged {
            sent: self.sent.load(Ordering::SeqCst),
            read: self.read.load(Ordering::SeqCst),
        }
    }

    /// Returns whether this side has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

/// Counts a connection's bytes as they are read and written.
pub(super) struct ByteCounter(pub(super) Arc<ByteCounts>);

impl Drop for ByteCounter {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
    }
}

impl Watcher for ByteCounter {
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.read.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok(())
    }

    fn wrote(&mut self, _: &[IoSlice<'_>], length: usize) {
        self.0.sent.fetch_add(length as u64, Ordering::SeqCst);
    }
}
