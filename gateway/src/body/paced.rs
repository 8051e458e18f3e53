//! A body that must come at a minimum rate.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::BoxError;
use crate::pace::{MinRate, Pace};

/// A body that has been waited for this long while it was passed on, and came slower than this on the whole, bytes a
/// second, counts as one that pauses.
const SLOW_AFTER: Duration = Duration::from_secs(2);
const SLOW_RATE: f64 = 16_384.0;

/// The body comes at less than the minimum rate.
#[derive(Debug, thiserror::Error)]
#[error("the body came too slowly")]
pub(super) struct TooSlow;

/// A body that fails if it comes at less than the minimum rate. Only waiting for it counts: a function that reads
/// slowly is not its client's fault.
pub(super) struct Paced {
    pub(super) body: Body,
    pace: Pace,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Whether it may be silent.
    pub(super) is_call: bool,
    /// How long it was waited for, and the bytes that came then.
    waited: Duration,
    came: u64,
}

impl Paced {
    pub(super) fn new(body: Body, rate: MinRate) -> Self {
        Self {
            body,
            pace: Pace::new(rate),
            waiting: None,
            is_call: false,
            waited: Duration::ZERO,
            came: 0,
        }
    }

    pub(super) fn is_slow(&self) -> bool {
        self.waited >= SLOW_AFTER && (self.came as f64) < SLOW_RATE * self.waited.as_secs_f64()
    }
}

impl http_body::Body for Paced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some((since, _)) = this.waiting.take() {
                let bytes = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref());
                let (waited, bytes) = (since.elapsed(), bytes.map_or(0, |data| data.len() as u64));
                this.pace.moved(waited, bytes);
                this.waited += waited;
                this.came += bytes;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if this.is_call {
            return Poll::Pending;
        }
        let left = this.pace.left();
        let (_, timer) = this
            .waiting
            .get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(TooSlow.into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
