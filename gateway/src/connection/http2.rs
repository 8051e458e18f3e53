//! A client's connection with many requests at once. Each counts towards the client's limits, as on a connection of its
//! own. `hyper` reads a response's body only as fast as the client takes it, so a slow client shows in how long a piece
//! waits. A single stream cannot be ended from here, so that ends the connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{COOKIE, HOST};
use http::{HeaderMap, HeaderValue, Request};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rekindle_relay::WatchedStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::frames::FrameWatcher;
use super::phase::GuardedBody;
use super::{ConnectionContext, ConnectionEnd, IDLE_LIMIT, RequestHandler};
use crate::pace::Pace;

/// Maximum number of concurrent requests on a connection.
const STREAMS_MAX: u32 = 128;
/// Largest request head that is read: names, values and 32 bytes for each header.
const HEAD_MAX: u32 = 128 << 10;
/// Maximum number of streams reset by the client before they are processed, and of streams reset here for its errors.
/// Beyond it the connection ends.
const RESETS_MAX: usize = 32;
/// Maximum of a response that waits to be sent, bytes.
const SEND_MAX: usize = 128 << 10;
/// Bytes of a request's body that a client may send before they are read here. Each body reserves memory for as many.
pub(crate) const WINDOW: u32 = 64 << 10;
/// Bytes of all bodies on a connection that may be sent before they are read.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Clients acknowledge in steps of about this many bytes.
const STEP_MAX: usize = 32 << 10;
/// How often to check whether the connection is idle, or a response is not taken.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Limit for the last piece of a response that ended early.
const TAKE_LAST: Duration = Duration::from_secs(2);
/// Limit after the client was asked to open no more streams.
const GOODBYE_LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn serve<A: RequestHandler>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    serving: ConnectionContext<A>,
) -> hyper::Result<ConnectionEnd> {
    let ConnectionContext {
        answering,
        via,
        phase,
        limits,
        metrics,
        mut ended,
        ..
    } = serving;
    let serving_phase = phase.clone();
    let answers = Arc::new(Answers::default());
    let taken = answers.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (answering, via) = (answering.clone(), via.clone());
        let (phase, taken) = (serving_phase.clone(), taken.clone());
        async move {
            let busy = phase.busy();
            let mut request = request.map(Body::new);
            as_http1(&mut request);
            // A problem with one stream does not affect the others.
            let over = CancellationToken::new();
            let (answer, client) = answering.answer(request, &via, over.clone()).await;
            Ok::<_, Infallible>(answer.map(|body| {
                let taking = BodyPacing {
                    pace: Pace::new(limits.rate),
                    handed: None,
                    over,
                };
                PacedBody::new(GuardedBody::new(body, busy, client), taken, taking)
            }))
        }
    });
    let stream = WatchedStream::new(stream, FrameWatcher::new(limits.head, metrics.clone()));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .max_send_buf_size(SEND_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut idle_since, mut heads) = (Instant::now(), phase.heads());
    let mut leave_by = None;
    loop {
        tokio::select! {
            result = &mut connection => return result.map(|()| ConnectionEnd::Closed),
            _ = ended.changed(), if leave_by.is_none() => {
                connection.as_mut().graceful_shutdown();
                // Requests in flight have the time that the gateway gives them.
                leave_by = Some(None);
            }
            _ = look.tick() => {
                if answers.is_one_late() {
                    metrics.refused("slow_reader");
                    return Ok(ConnectionEnd::Cut("an answer was taken too slowly"));
                }
                let now = Instant::now();
                if phase.answering() > 0 || phase.heads() != heads {
                    (idle_since, heads) = (now, phase.heads());
                }
                match leave_by {
                    Some(Some(limit)) if now >= limit => return Ok(ConnectionEnd::Cut("it was idle")),
                    None if now >= idle_since + IDLE_LIMIT => {
                        connection.as_mut().graceful_shutdown();
                        leave_by = Some(Some(now + GOODBYE_LIMIT));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Makes a request look like HTTP/1.1, which functions are spoken to in.
fn as_http1(request: &mut Request<Body>) {
    let authority = request
        .uri()
        .authority()
        .and_then(|a| HeaderValue::from_str(a.as_str()).ok());
    if let Some(host) = authority
        && !request.headers().contains_key(HOST)
    {
        request.headers_mut().insert(HOST, host);
    }
    join_cookies(request.headers_mut());
}

/// Cookies may come one by one, which compresses better; elsewhere they are one header (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// The responses that clients are taking.
#[derive(Debug, Default)]
struct Answers {
    next: AtomicU64,
    /// Responses by a number of their own.
    taking: Mutex<HashMap<u64, BodyPacing>>,
}

#[derive(Debug)]
struct BodyPacing {
    pace: Pace,
    /// When the piece not taken yet was handed out, and its bytes.
    handed: Option<(Instant, usize)>,
    /// Cancelled when the response has failed or its time is over. The client is told when it takes what it was sent.
    over: CancellationToken,
}

impl BodyPacing {
    fn is_late(&self) -> bool {
        let Some((since, bytes)) = self.handed else {
            return false;
        };
        let left = match self.over.is_cancelled() {
            true => TAKE_LAST,
            false => self.pace.left_for(bytes.min(STEP_MAX) as u64),
        };
        since.elapsed() > left
    }
}

impl Answers {
    /// Whether the client takes one of them too slowly.
    fn is_one_late(&self) -> bool {
        self.taking.lock().values().any(BodyPacing::is_late)
    }
}

/// A response's body, whose pieces are requested as the client takes them.
struct PacedBody {
    body: GuardedBody,
    answers: Arc<Answers>,
    number: u64,
}

impl PacedBody {
    fn new(body: GuardedBody, answers: Arc<Answers>, taking: BodyPacing) -> Self {
        let number = answers.next.fetch_add(1, Ordering::Relaxed);
        answers.taking.lock().insert(number, taking);
        Self { body, answers, number }
    }

    fn with(&self, then: impl FnOnce(&mut BodyPacing)) {
        if let Some(taking) = self.answers.taking.lock().get_mut(&self.number) {
            then(taking);
        }
    }
}

impl Drop for PacedBody {
    fn drop(&mut self) {
        self.answers.taking.lock().remove(&self.number);
    }
}

impl http_body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.with(|taking| {
            if let Some((since, bytes)) = taking.handed.take() {
                taking.pace.moved(since.elapsed(), bytes as u64);
            }
        });
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let bytes = data.len();
            self.with(|taking| taking.handed = Some((Instant::now(), bytes)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_functions_know_it() {
        let mut request = Request::get("https://hello.example/x")
            .header(COOKIE, "a=1")
            .header(COOKIE, "b=2")
            .body(Body::empty())
            .unwrap();
        as_http1(&mut request);
        assert_eq!(request.headers()[HOST], "hello.example");
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2"]);
    }
}
