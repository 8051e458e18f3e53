//! A response body that drives its connection while it is short, and returns the connection to the pool at its end.
//! That of a stream among others counts as one until it is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{ConnectionPool, PooledConnection};

/// The body of a response. If it is dropped before its end, its connection is closed.
pub struct Reply {
    body: Incoming,
    /// `None` once the body has ended.
    connection: Option<PooledConnection>,
    /// `None` for a stream.
    home: Option<ConnectionPool>,
    /// Counts an open stream.
    _stream: Option<Arc<()>>,
}

impl Reply {
    pub(crate) fn new(body: Incoming, connection: PooledConnection, home: ConnectionPool) -> Self {
        let mut reply = Self {
            body,
            connection: Some(connection),
            home: Some(home),
            _stream: None,
        };
        if reply.body.is_end_stream() {
            reply.over();
        }
        reply
    }

    /// The body of one of a connection's streams.
    pub(crate) fn of_stream(body: Incoming, stream: Arc<()>) -> Self {
        Self {
            body,
            connection: None,
            home: None,
            _stream: Some(stream),
        }
    }

    /// Called when the response is complete.
    fn over(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if let Some(home) = self
            .home
            .as_ref()
            .filter(|_| connection.is_reusable && (connection.is_handed_over() || connection.is_ready()))
        {
            home.keep(connection);
        } else {
            // The rest, such as the end of the request or of the connection, completes without us.
            connection.hand_over();
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { body, connection, .. } = &mut *self;
        let polled = match connection.as_mut().filter(|connection| !connection.is_handed_over()) {
            None => Pin::new(body).poll_frame(cx),
            Some(connection) => {
                let polled = connection.poll(cx, |cx| Pin::new(&mut *body).poll_frame(cx));
                if polled.is_pending() {
                    // The response takes a while. The rest of the request must not wait for the reader.
                    connection.hand_over();
                }
                polled
            }
        };
        match &polled {
            Poll::Ready(Some(Ok(_))) if self.body.is_end_stream() => self.over(),
            Poll::Ready(None) => self.over(),
            Poll::Ready(Some(Err(_))) => self.connection = None,
            _ => {}
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
