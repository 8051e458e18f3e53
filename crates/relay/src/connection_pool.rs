//! A pool of HTTP/1.1 connections to one destination.
//!
//! ```text
//! idle ──request──> driven by its sender ──whole response available──> idle
//!                        └── either is still in progress ──> driven by a task ──> idle once wanted
//! ```
//!
//! Most exchanges are short. If the caller that waits for the response drives the connection, no hand-over between
//! tasks is needed. A hand-over costs more than the exchange itself if it wakes another thread. An idle connection is
//! only checked when it is wanted: one that was closed meanwhile is skipped.
//!
//! A destination with a keep-alive timeout may close an idle connection while a request is on its way. A safe request
//! without a body is then sent once more. Every other request gets a connection that was in use a moment ago.
//!
//! A destination that answers without reading a request's body would take the body for the next request, which may be
//! another caller's. Where that is possible, a connection that carried a body is not used again.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::header::{CONNECTION, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use parking_lot::Mutex;

use crate::reset::Reset;
use crate::waking::SharedWaker;

mod reply;

pub use reply::Reply;

/// How long an idle connection is kept.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// How long a connection may have been idle for a request that cannot be sent twice. Servers close idle connections
/// after two seconds at the earliest, most after five.
const IDLE_BRIEF: Duration = Duration::from_secs(1);

/// Maximum number of idle connections per destination: as many as were recently in use at once, within reason.
const IDLE_MOST: usize = 256;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The destination is unreachable. The request has not been seen.
    #[error("no connection can be made")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The destination ended the request's stream and says that it has processed nothing of it.
    #[error("the destination has refused the request, unseen")]
    Refused(#[source] hyper::Error),
    /// The connection broke. The request may have been seen.
    #[error("the connection broke before its answer")]
    Broken(#[source] hyper::Error),
    /// The received data is not an HTTP response. The connection is closed.
    #[error("what came is no HTTP answer")]
    Malformed(#[source] hyper::Error),
    /// The response's head exceeds the [`HeadLimits`]. The connection is closed.
    #[error("the answer's headers are too many or too long")]
    HeadTooLarge,
}

impl From<hyper::Error> for SendError {
    fn from(error: hyper::Error) -> Self {
        match error.is_parse() {
            true if error.is_parse_too_large() => Self::HeadTooLarge,
            true => Self::Malformed(error),
            false if Reset::of(&error) == Some(Reset::Refused) => Self::Refused(error),
            false => Self::Broken(error),
        }
    }
}

/// Limits on the head of a response.
#[derive(Debug, Clone, Copy)]
pub struct HeadLimits {
    /// Number of header lines.
    pub lines: usize,
    /// Size in bytes.
    pub bytes: usize,
}

impl HeadLimits {
    /// Limits for functions' responses.
    pub const FUNCTION: Self = Self {
        lines: 256,
        bytes: 64 << 10,
    };
    /// Limits for the same responses with the platform's additions.
    pub const PLATFORM: Self = Self {
        lines: 320,
        bytes: 80 << 10,
    };
}

/// Whether the destination closes idle connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// It keeps them for longer than the pool does.
    Unlimited,
    /// It closes them after a time that is not known.
    Timeout,
}

/// A pool of connections to one destination. Clones share it.
#[derive(Clone)]
pub struct ConnectionPool {
    idle: Arc<Mutex<Vec<PooledConnection>>>,
    limits: HeadLimits,
    keep_alive: KeepAlive,
    reads_bodies: bool,
}

/// What reads and writes on a connection, until it ends or changes its protocol.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

pub(crate) struct PooledConnection {
    sender: SendRequest<Body>,
    /// `None` once a task drives it.
    connection: Option<Driver>,
    waking: SharedWaker,
    since: Instant,
    /// Whether another request may follow.
    is_reusable: bool,
}

impl ConnectionPool {
    /// An empty pool with these limits on responses.
    pub fn new(limits: HeadLimits, keep_alive: KeepAlive) -> Self {
        Self {
            idle: Arc::default(),
            limits,
            keep_alive,
            reads_bodies: true,
        }
    }

    /// The same for a destination that may leave a request's body unread, or write a body where none may be. The pool
    /// closes what carried such a request, and says so in the request.
    #[must_use]
    pub fn without_reuse_after_bodies(self) -> Self {
        Self {
            reads_bodies: false,
            ..self
        }
    }

    /// Sends a request and waits for the response's head. Only the path and query of its URI are sent, with its `Host`
    /// header or the URI's host. If an idle connection does not accept the request, it is sent over another one.
    /// `connect` opens new connections.
    ///
    /// # Errors
    /// If no connection can be made, or the connection breaks.
    pub async fn send<F, T, E>(
        &self,
        mut request: Request<Body>,
        connect: impl Fn() -> F,
    ) -> Result<Response<Reply>, SendError>
    where
        F: Future<Output = Result<T, E>>,
        T: Read + Write + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        address(&mut request);
        let resendable = self.keep_alive == KeepAlive::Timeout && is_resendable(&request);
        let idle = match self.keep_alive {
            KeepAlive::Timeout if !resendable => IDLE_BRIEF,
            _ => IDLE,
        };
        let may_be_out_of_step = !request.body().is_end_stream() || request.method() == Method::HEAD;
        let is_last = !self.reads_bodies && may_be_out_of_step;
        if is_last && !request.headers().contains_key(CONNECTION) {
            // What the function leaves unread is no request then.
            request
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // Why a reused connection gave no response.
        let mut broken = None;
        loop {
            let reused = if broken.is_none() { self.take(idle) } else { None };
            let is_new = reused.is_none();
            let mut connection = match reused {
                Some(connection) => connection,
                None => match PooledConnection::open(&connect, self.limits).await {
                    Ok(connection) => connection,
                    // The function has ended, which is why the connection broke.
                    Err(error) => return Err(broken.unwrap_or(error)),
                },
            };
            connection.is_reusable = !is_last;
            let copy = (resendable && !is_new).then(|| copy_head(&request));
            match connection.exchange(request).await {
                // A head that arrives in large pieces is parsed before its length is checked.
                Ok(answer) if head_bytes(answer.headers()) > self.limits.bytes => return Err(SendError::HeadTooLarge),
                Ok(answer) => {
                    // Some servers write a body all the same, which would be the next answer.
                    let has_none = matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
                    connection.is_reusable &= self.reads_bodies || !has_none;
                    return Ok(answer.map(|body| Reply::new(body, connection, self.clone())));
                }
                Err(mut error) => match (error.take_message(), copy) {
                    // The connection was closed while idle, and the request has not been seen.
                    (Some(unsent), _) if !is_new => request = unsent,
                    (_, copy) => match (error.into_error().into(), copy) {
                        (error @ SendError::Broken(_), Some(copy)) => {
                            broken = Some(error);
                            request = copy;
                        }
                        (error, _) => return Err(error),
                    },
                },
            }
        }
    }

    /// Opens a connection for the next request, if none is idle.
    ///
    /// # Errors
    /// If no connection can be made.
    pub async fn connect_ahead<F, T, E>(&self, connect: impl Fn() -> F) -> Result<(), SendError>
    where
        F: Future<Output = Result<T, E>>,
        T: Read + Write + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if self.idle.lock().is_empty() {
            self.keep(PooledConnection::open(&connect, self.limits).await?);
        }
        Ok(())
    }

    /// Whether there is one connection, over which nothing is under way.
    pub fn is_at_rest(&self) -> bool {
        match &mut self.idle.lock()[..] {
            [connection] => connection.is_ready(),
            _ => false,
        }
    }

    /// Closes connections that have been idle for long. Returns whether any are left.
    pub fn sweep(&self) -> bool {
        let old = Instant::now().checked_sub(IDLE);
        let mut idle = self.idle.lock();
        idle.retain(|connection| Some(connection.since) >= old);
        !idle.is_empty()
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        self.idle.lock().clear();
    }

    /// The most recently used connection that is usable and was idle for at most `limit`. Closes those that were idle
    /// for longer: a server of one thread serves no other connection before they end.
    fn take(&self, limit: Duration) -> Option<PooledConnection> {
        let mut idle = self.idle.lock();
        let mut busy = Vec::new();
        let mut found = None;
        while let Some(mut connection) = idle.pop() {
            match connection.is_ready() {
                true if connection.since.elapsed() > limit => {}
                true => {
                    found = Some(connection);
                    break;
                }
                // Its task has not become ready for the next request yet.
                false if !connection.is_closed() => busy.push(connection),
                false => {}
            }
        }
        idle.extend(busy);
        found
    }

    /// Keeps a connection for another request.
    pub(crate) fn keep(&self, mut connection: PooledConnection) {
        connection.since = Instant::now();
        connection.waking.rest();
        let old = connection.since.checked_sub(IDLE);
        let mut idle = self.idle.lock();
        if idle.first().is_some_and(|first| Some(first.since) < old) {
            idle.retain(|connection| Some(connection.since) >= old);
        }
        if idle.len() < IDLE_MOST {
            idle.push(connection);
        }
    }
}

/// Size of the headers in a head in bytes.
pub(crate) fn head_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}

/// Whether a request may reach the destination twice. The first time it was not answered.
fn is_resendable(request: &Request<Body>) -> bool {
    request.method().is_safe() && request.body().is_end_stream()
}

/// A copy of a request without a body.
fn copy_head(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// Rewrites the request's head to the form used on a connection.
fn address(request: &mut Request<Body>) {
    if !request.headers().contains_key(HOST)
        && let Some(host) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(host.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
}

impl PooledConnection {
    async fn open<F, T, E>(connect: &impl Fn() -> F, limits: HeadLimits) -> Result<Self, SendError>
    where
        F: Future<Output = Result<T, E>>,
        T: Read + Write + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = connect().await.map_err(|e| SendError::Connect(e.into()))?;
        let shaken = http1::Builder::new()
            .max_headers(limits.lines)
            .max_buf_size(limits.bytes)
            .handshake(stream)
            .await;
        let (sender, connection) = shaken.map_err(|e| SendError::Connect(e.into()))?;
        Ok(Self {
            sender,
            connection: Some(Box::pin(connection.with_upgrades())),
            waking: SharedWaker::default(),
            since: Instant::now(),
            is_reusable: true,
        })
    }

    /// Sends a request over it and drives it until the response's head arrives.
    async fn exchange(&mut self, request: Request<Body>) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let sending = self.sender.try_send_request(request);
        let mut sending = std::pin::pin!(sending);
        poll_fn(|cx| {
            let connection = &mut self.connection;
            self.waking.poll(cx, |cx| {
                drive(connection, cx);
                sending.as_mut().poll(cx)
            })
        })
        .await
    }

    /// Polls `step` after the connection has read and written as much as it can.
    pub(crate) fn poll<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut step: impl FnMut(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let connection = &mut self.connection;
        self.waking.poll(cx, |cx| match step(cx) {
            Poll::Pending => {
                drive(connection, cx);
                step(cx)
            }
            ready => ready,
        })
    }

    /// Whether a task drives it instead of its user, or it has ended.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.connection.is_none()
    }

    /// Hands it over to a task, which drives it from now on.
    pub(crate) fn hand_over(&mut self) {
        if let Some(connection) = self.connection.take() {
            tokio::spawn(connection);
        }
    }

    /// Whether it accepts a request now.
    pub(crate) fn is_ready(&mut self) -> bool {
        // No waker is needed: the sender of a request drives it again.
        drive(&mut self.connection, &mut Context::from_waker(Waker::noop()));
        self.sender.is_ready()
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

fn drive(connection: &mut Option<Driver>, cx: &mut Context<'_>) {
    let over = connection.as_mut().map(|driven| driven.as_mut().poll(cx));
    // Its result is reported to whoever waits for a response on it.
    if let Some(Poll::Ready(_)) = over {
        *connection = None;
    }
}

#[cfg(test)]
#[path = "connection_pool_tests.rs"]
mod tests;
