//! The first bytes of a plain connection: HTTP/2 with prior knowledge begins with a preface that is no request of
//! HTTP/1.1 (RFC 9113, 3.4). What was read to see that is read again by whoever serves the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use rekindle_relay::PREFACE;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// A stream whose first bytes were read ahead.
pub(super) struct ReadAhead<S> {
    stream: S,
    first: [u8; PREFACE.len()],
    /// The part of `first` that was not read again.
    from: usize,
    to: usize,
}

impl<S: AsyncRead + Unpin> ReadAhead<S> {
    /// Reads until it is clear which protocol the stream begins with. Returns whether that is HTTP/2.
    ///
    /// # Errors
    /// If the stream breaks.
    pub(super) async fn of(mut stream: S) -> io::Result<(Self, bool)> {
        let (mut first, mut to) = ([0; PREFACE.len()], 0);
        while to < PREFACE.len() && first[..to] == PREFACE[..to] {
            let length = stream.read(&mut first[to..]).await?;
            if length == 0 {
                break;
            }
            to += length;
        }
        let is_http2 = first[..to] == *PREFACE;
        Ok((
            Self {
                stream,
                first,
                from: 0,
                to,
            },
            is_http2,
        ))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.from < self.to {
            let length = buf.remaining().min(self.to - self.from);
            buf.put_slice(&self.first[self.from..self.from + length]);
            self.from += length;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn what_begins_with_the_preface_is_http2_and_nothing_is_lost() {
        let whole = [&PREFACE[..], b"more"].concat();
        for (sent, is_http2) in [
            (whole.as_slice(), true),
            (b"PRI * HTTP/2.0\r\n\r\n", false),
            (b"PRI * HTTP/1.1\r\n\r\n", false),
            (b"PROPFIND / HTTP/1.1\r\nhost: a\r\n\r\n", false),
            (b"GET / HTTP/1.1\r\n\r\n", false),
            (b"P", false),
            (b"", false),
        ] {
            for piece in [1, 3, 64] {
                let (mut client, server) = tokio::io::duplex(256);
                for part in sent.chunks(piece) {
                    client.write_all(part).await.unwrap();
                }
                drop(client);
                let (mut stream, found) = ReadAhead::of(server).await.unwrap();
                let mut read = Vec::new();
                stream.read_to_end(&mut read).await.unwrap();
                assert_eq!(
                    (found, read.as_slice()),
                    (is_http2, sent),
                    "{sent:?} in pieces of {piece}"
                );
            }
        }
    }
}
