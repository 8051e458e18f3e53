//! The end of a connection whose client may still be sending the body of a request that was answered without it, such
//! as one that is too large. If the socket were closed then, the kernel would reset the connection, and a client that
//! sends all before it reads would see that instead of the answer. So what it sends is read for a while and dropped.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::phase::Phase;

/// How long it is read in all, and how long it may be silent meanwhile.
const LIMIT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(2);
const BUFFER: usize = 16 << 10;
/// How many buffers are read before others have their turn.
const TURN: usize = 32;

/// Drops what comes until the client closes its end, or a limit.
pub(super) struct Linger {
    until: Instant,
    silence: Duration,
    timer: Pin<Box<Sleep>>,
    buffer: Box<[u8]>,
}

impl Linger {
    pub(super) fn new() -> Self {
        Self::within(LIMIT, SILENCE)
    }

    fn within(limit: Duration, silence: Duration) -> Self {
        Self {
            until: Instant::now() + limit,
            silence,
            timer: Box::pin(tokio::time::sleep(silence)),
            buffer: vec![0; BUFFER].into_boxed_slice(),
        }
    }

    /// Is ready once the connection may be closed.
    pub(super) fn poll(&mut self, stream: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<()> {
        let mut has_come = false;
        for _ in 0..TURN {
            let mut read = ReadBuf::new(&mut self.buffer);
            match Pin::new(&mut *stream).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => has_come = true,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    if has_come {
                        self.put_off();
                    }
                    return self.timer.as_mut().poll(cx);
                }
            }
        }
        self.put_off();
        cx.waker().wake_by_ref();
        self.timer.as_mut().poll(cx)
    }

    fn put_off(&mut self) {
        let silent = Instant::now() + self.silence;
        self.timer.as_mut().reset(silent.min(self.until));
    }
}

/// A request's body. If it is dropped before its end, its connection is told.
pub(super) struct UnreadBody {
    body: Incoming,
    phase: Arc<Phase>,
    has_ended: bool,
}

impl UnreadBody {
    pub(super) fn new(body: Incoming, phase: Arc<Phase>) -> Self {
        phase.leaves_body(false);
        let has_ended = body.is_end_stream();
        Self { body, phase, has_ended }
    }
}

impl Body for UnreadBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.has_ended = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        if !self.has_ended {
            self.phase.leaves_body(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(200);

    async fn linger(mut stream: impl AsyncRead + Unpin, limit: Duration, silence: Duration) {
        let mut linger = Linger::within(limit, silence);
        poll_fn(|cx| linger.poll(&mut stream, cx)).await;
    }

    #[tokio::test]
    async fn it_lasts_until_the_client_closes_its_end() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let reading = tokio::spawn(linger(server, LONG, LONG));
        client.write_all(&vec![7; 2 << 20]).await.unwrap();
        assert!(!reading.is_finished());
        drop(client);
        reading.await.unwrap();
    }

    #[tokio::test]
    async fn it_ends_when_the_client_is_silent_and_when_it_sends_without_end() {
        let (_silent, server) = tokio::io::duplex(1 << 10);
        linger(server, LONG, SHORT).await;
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let sending = tokio::spawn(async move { while client.write_all(&[7; 64]).await.is_ok() {} });
        linger(server, SHORT, LONG).await;
        sending.await.unwrap();
    }
}
