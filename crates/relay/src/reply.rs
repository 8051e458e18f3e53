//! An answer's body, which drives its connection for as long as it is short, and gives it back at its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};

use crate::connection_pool::{ConnectionPool, PooledConnection};

/// The body of an answer. Dropped before its end, its connection is closed.
pub struct Reply<T>
where
    T: Read + Write + Unpin + Send + 'static,
{
    body: Incoming,
    /// `None` at its end.
    connection: Option<PooledConnection<T>>,
    home: ConnectionPool<T>,
}

impl<T> Reply<T>
where
    T: Read + Write + Unpin + Send + 'static,
{
    pub(crate) fn new(body: Incoming, connection: PooledConnection<T>, home: ConnectionPool<T>) -> Self {
        let mut reply = Self {
            body,
            connection: Some(connection),
            home,
        };
        if reply.body.is_end_stream() {
            reply.over();
        }
        reply
    }

    /// The answer is whole.
    fn over(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if connection.is_handed_over() || connection.is_ready() {
            self.home.keep(connection);
        } else {
            // What is left to do on it, such as the rest of the request, is done without us.
            connection.hand_over();
        }
    }
}

impl<T> Body for Reply<T>
where
    T: Read + Write + Unpin + Send + 'static,
{
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { body, connection, .. } = &mut *self;
        let polled = match connection.as_mut().filter(|connection| !connection.is_handed_over()) {
            None => Pin::new(body).poll_frame(cx),
            Some(connection) => {
                let polled = connection.poll(cx, |cx| Pin::new(&mut *body).poll_frame(cx));
                if polled.is_pending() {
                    // It takes its time: whether somebody reads on or not, the request's rest must not wait for it.
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
