//! What a connection's stream knows of the requests on it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::clients::ClientPermit;

/// Number of requests being answered, and of complete heads.
#[derive(Debug, Default)]
pub(super) struct Phase {
    answering: AtomicU32,
    heads: AtomicU32,
    is_multiplexed: AtomicBool,
    has_left_body: AtomicBool,
}

/// A guard: while it exists, a request is being answered.
#[derive(Debug)]
pub(super) struct BusyGuard(Arc<Phase>);

impl Phase {
    /// Whether input may be something other than a head.
    pub(super) fn is_busy(&self) -> bool {
        self.is_multiplexed.load(Ordering::Relaxed) || self.answering() > 0
    }

    /// Number of requests being answered.
    pub(super) fn answering(&self) -> u32 {
        self.answering.load(Ordering::Relaxed)
    }

    pub(super) fn heads(&self) -> u32 {
        self.heads.load(Ordering::Relaxed)
    }

    /// Records the end of a handshake: the input so far belonged to no head. On a multiplexed connection `frames` times
    /// the heads.
    pub(super) fn shaken(&self, is_multiplexed: bool) {
        self.is_multiplexed.store(is_multiplexed, Ordering::Relaxed);
        self.heads.fetch_add(1, Ordering::Relaxed);
    }

    /// Records whether a request's body is left unread, or a part of it.
    pub(super) fn leaves_body(&self, is_left: bool) {
        self.has_left_body.store(is_left, Ordering::Relaxed);
    }

    /// Whether the last request's body was left unread, or a part of it.
    pub(super) fn has_left_body(&self) -> bool {
        self.has_left_body.load(Ordering::Relaxed)
    }

    /// Records that a request's head is complete.
    pub(super) fn busy(self: Arc<Self>) -> BusyGuard {
        self.answering.fetch_add(1, Ordering::Relaxed);
        self.heads.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self)
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response's body; dropping it ends its request.
pub(super) struct GuardedBody {
    body: Body,
    _busy: BusyGuard,
    _client: Option<Arc<ClientPermit>>,
}

impl GuardedBody {
    pub(super) fn new(body: Body, busy: BusyGuard, client: Option<Arc<ClientPermit>>) -> Self {
        Self {
            body,
            _busy: busy,
            _client: client,
        }
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
