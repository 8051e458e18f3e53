//! A stream whose bytes are looked at as they pass, by whoever sets limits to them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Looks at a stream's bytes.
pub trait Watcher {
    /// Bytes were read.
    ///
    /// # Errors
    /// If no more are to be read.
    fn read(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// The first `length` bytes of these were written.
    fn wrote(&mut self, parts: &[IoSlice<'_>], length: usize);

    /// Is ready if a read takes too long.
    fn poll_late(&mut self, _: &mut Context<'_>) -> Poll<io::Error> {
        Poll::Pending
    }
}

/// A stream with its watcher.
#[derive(Debug)]
pub struct WatchedStream<S, W> {
    stream: S,
    pub(crate) watcher: W,
}

impl<S, W> WatchedStream<S, W> {
    /// Has all bytes of the stream looked at.
    pub fn new(stream: S, watcher: W) -> Self {
        Self { stream, watcher }
    }

    /// Who looks at them.
    pub fn watcher(&self) -> &W {
        &self.watcher
    }
}

impl<S: AsyncRead + Unpin, W: Watcher + Unpin> AsyncRead for WatchedStream<S, W> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) {
            self.watcher.read(&buf.filled()[before..])?;
        }
        match self.watcher.poll_late(cx) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => read,
        }
    }
}

impl<S: AsyncWrite + Unpin, W: Watcher + Unpin> AsyncWrite for WatchedStream<S, W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(length)) = wrote {
            self.watcher.wrote(&[IoSlice::new(buf)], length);
        }
        wrote
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(length)) = wrote {
            self.watcher.wrote(bufs, length);
        }
        wrote
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
