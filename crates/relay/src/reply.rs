//! An answer's body, which drives its connection for as long as it is short, and gives it back at its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};

use crate::lines::{Line, Lines};

/// The body of an answer. Dropped before its end, its connection is closed.
pub struct Reply<T>
where
    T: Read + Write + Unpin + Send + 'static,
{
    body: Incoming,
    /// `None` at its end.
    line: Option<Line<T>>,
    home: Lines<T>,
}

impl<T> Reply<T>
where
    T: Read + Write + Unpin + Send + 'static,
{
    pub(crate) fn new(body: Incoming, line: Line<T>, home: Lines<T>) -> Self {
        let mut reply = Self {
            body,
            line: Some(line),
            home,
        };
        if reply.body.is_end_stream() {
            reply.over();
        }
        reply
    }

    /// The answer is whole.
    fn over(&mut self) {
        let Some(mut line) = self.line.take() else { return };
        if line.is_handed_over() || line.is_ready() {
            self.home.keep(line);
        } else {
            // What is left to do on it, such as the rest of the request, is done without us.
            line.hand_over();
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
        let Self { body, line, .. } = &mut *self;
        let polled = match line.as_mut().filter(|line| !line.is_handed_over()) {
            None => Pin::new(body).poll_frame(cx),
            Some(line) => {
                let polled = line.poll(cx, |cx| Pin::new(&mut *body).poll_frame(cx));
                if polled.is_pending() {
                    // It takes its time: whether somebody reads on or not, the request's rest must not wait for it.
                    line.hand_over();
                }
                polled
            }
        };
        match &polled {
            Poll::Ready(Some(Ok(_))) if self.body.is_end_stream() => self.over(),
            Poll::Ready(None) => self.over(),
            Poll::Ready(Some(Err(_))) => self.line = None,
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
