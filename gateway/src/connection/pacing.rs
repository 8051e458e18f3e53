//! The stream under a client's connection, and under its TLS. It fails when the client takes too long to send a head or
//! to take a response.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rekindle_wire::{ApiError, ErrorCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::linger::Linger;
use super::phase::Phase;
use super::unsent::unsent;
use super::{Limits, refusal};
use crate::metrics::Metrics;
use crate::pace::Pace;

/// Credit below this counts as none: a timer for it would fire at once, again and again.
const STEP_MIN: Duration = Duration::from_millis(5);

pub(super) struct Paced {
    stream: TcpStream,
    limits: Limits,
    phase: Arc<Phase>,
    metrics: Arc<Metrics>,
    /// Whether a late client can be sent an error here.
    is_plain: bool,
    /// Number of complete heads at the last check.
    heads: u32,
    /// When the first byte of an incomplete head came.
    head_since: Option<Instant>,
    /// Created when a head must be waited for. Most need not be: they come in one piece.
    head_timer: Option<Pin<Box<Sleep>>>,
    pace: Pace,
    blocked: Option<BlockedWrite>,
    /// Once it is shut down with a body unread.
    linger: Option<Linger>,
}

/// The socket accepts nothing more, since the client has not taken what is in it.
struct BlockedWrite {
    since: Instant,
    unsent: u64,
    timer: Pin<Box<Sleep>>,
}

impl Paced {
    pub(super) fn new(
        stream: TcpStream,
        limits: Limits,
        phase: Arc<Phase>,
        metrics: Arc<Metrics>,
        is_plain: bool,
    ) -> Self {
        Self {
            stream,
            limits,
            phase,
            metrics,
            is_plain,
            heads: 0,
            head_since: None,
            head_timer: None,
            pace: Pace::new(limits.rate),
            blocked: None,
            linger: None,
        }
    }

    /// Fails once a head takes too long.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(since) = self.head_since else { return Ok(()) };
        let until = since + self.limits.head;
        let timer = self
            .head_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if timer.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        self.metrics.refused("slow_head");
        let limit = self.limits.head;
        let error = ApiError::new(
            ErrorCode::RequestTimeout,
            format!(
                "the request's head did not arrive whole within {}s: send it at once",
                limit.as_secs_f64()
            ),
        );
        if self.is_plain {
            // As much of it as fits at once: a slow client is not waited for.
            drop(self.stream.try_write(&refusal::raw(&error)));
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "a request's head took too long",
        ))
    }

    /// Accounts for the result of a write.
    fn poll_taken(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = wrote {
            if let Some(blocked) = self.blocked.take() {
                let bytes = result.as_ref().map_or(0, |n| *n as u64);
                self.pace.moved(blocked.since.elapsed(), bytes);
            }
            return Poll::Ready(result);
        }
        loop {
            let left = self.pace.left();
            let stream = &self.stream;
            let blocked = self.blocked.get_or_insert_with(|| BlockedWrite {
                since: Instant::now(),
                unsent: unsent(stream),
                timer: Box::pin(tokio::time::sleep(left)),
            });
            ready!(blocked.timer.as_mut().poll(cx));
            let now_unsent = unsent(stream);
            let (waited, taken) = (blocked.since.elapsed(), blocked.unsent.saturating_sub(now_unsent));
            self.blocked = None;
            self.pace.moved(waited, taken);
            if self.pace.left() < STEP_MIN {
                self.metrics.refused("slow_reader");
                let late = "an answer was taken too slowly";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, late)));
            }
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        let heads = this.phase.heads();
        if this.heads != heads {
            this.heads = heads;
            this.head_since = None;
            this.head_timer = None;
        }
        // A body has a limit of its own.
        if this.phase.is_busy() {
            return read;
        }
        if read.is_ready() {
            if buf.filled().len() > before {
                this.head_since.get_or_insert_with(Instant::now);
            }
            // An occasional byte does not reset the timer.
            if this.head_timer.is_none() {
                return read;
            }
        }
        match this.poll_head(cx) {
            Ok(()) => read,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.poll_taken(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.poll_taken(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            let shut = ready!(Pin::new(&mut this.stream).poll_shutdown(cx));
            if shut.is_err() || !this.phase.has_left_body() {
                return Poll::Ready(shut);
            }
        }
        let linger = this.linger.get_or_insert_with(Linger::new);
        linger.poll(&mut this.stream, cx).map(Ok)
    }
}
