//! A connection whose bytes are counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use rekindle_rewind::Exchanged;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

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

/// A connection whose bytes are counted as they are read and written.
pub(super) struct CountedStream {
    stream: TcpStream,
    counts: Arc<ByteCounts>,
}

impl CountedStream {
    pub(super) fn new(stream: TcpStream) -> (Self, Arc<ByteCounts>) {
        let counts = Arc::default();
        let counted = Self {
            stream,
            counts: Arc::clone(&counts),
        };
        (counted, counts)
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = written {
            self.counts.sent.fetch_add(written as u64, Ordering::SeqCst);
        }
        written
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.counts.is_closed.store(true, Ordering::SeqCst);
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let bytes = buf.filled().len() - before;
        self.counts.read.fetch_add(bytes as u64, Ordering::SeqCst);
        read
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
