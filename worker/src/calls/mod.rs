//! Calls between functions. A function's request to another one of its namespace arrives here, at the gateway's address
//! inside of each sandbox. It goes on to a gateway of the platform, which runs it like a client's.
//!
//! ```text
//!  sandbox ─http://NAME.fn.internal─> 198.18.0.1:80 (router) ─who calls, whom─> gateway ─> worker ─> NAME
//! ```
//!
//! Who calls is known by the address of the sandbox ([`Callers`]). What the function says of itself is not looked at.
//! HTTP/1.1 alone is spoken, without a change of protocol: everything that comes is a request that is seen here.

mod gateways;
mod target;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderName, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rekindle_relay::{HeadLimits, strip_hop_by_hop_but_upgrade, strip_named};
use rekindle_wire::function_call::FunctionCall;
use rekindle_wire::headers::{FUNCTION_CALL, PLATFORM_ERROR, TRACEPARENT};
use rekindle_wire::{ApiError, ErrorCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub use self::gateways::Gateways;
use self::target::{Target, traceparent};
use crate::instance::{Caller, Callers};

/// Maximum number of connections of all sandboxes. A sandbox's packet filter limits its own.
const CONNECTIONS: usize = 8_192;
/// How long the head of a request may take, and how long a connection may be unused.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// How long a call may take that belongs to no invocation.
const USUAL_LIMIT: Duration = Duration::from_secs(900);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Takes calls of functions.
pub(crate) struct FunctionCalls {
    pub(crate) callers: Arc<Callers>,
    pub(crate) gateways: Arc<Gateways>,
}

impl FunctionCalls {
    /// Serves until dropped.
    ///
    /// # Errors
    /// Returns an error when the listener cannot be used.
    pub(crate) fn serve(
        self: Arc<Self>,
        listener: std::net::TcpListener,
    ) -> io::Result<impl Future<Output = ()> + Send> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        Ok(async move {
            loop {
                match listener.accept().await {
                    // What has no place is closed, so that nobody waits behind it.
                    Ok((stream, from)) => {
                        if let Some((caller, places)) = self.admit(from.ip(), &room) {
                            drop(tokio::spawn(Arc::clone(&self).converse(stream, caller, places)));
                        }
                    }
                    // Most likely, too many files are open.
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        })
    }

    /// Whose connection comes from this address, with a place of the caller's and one of the host's.
    fn admit(&self, from: IpAddr, room: &Arc<Semaphore>) -> Option<(Arc<Caller>, [OwnedSemaphorePermit; 2])> {
        let caller = self.callers.at(from)?;
        let own = Arc::clone(&caller.connections).try_acquire_owned().ok()?;
        let place = Arc::clone(room).try_acquire_owned().ok()?;
        Some((caller, [own, place]))
    }

    async fn converse(self: Arc<Self>, stream: TcpStream, caller: Arc<Caller>, _places: [OwnedSemaphorePermit; 2]) {
        // A failure only makes the connection slower.
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request: Request<Incoming>| {
            let (calls, caller) = (Arc::clone(&self), Arc::clone(&caller));
            async move { Ok::<_, Infallible>(calls.answer(&caller, request.map(Body::new)).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_headers(HeadLimits::FUNCTION.lines)
            .max_buf_size(HeadLimits::FUNCTION.bytes)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = served.await {
            tracing::debug!(%error, "a function's connection ended early");
        }
    }

    async fn answer(&self, caller: &Caller, request: Request<Body>) -> Response<Body> {
        let answered = Box::pin(self.pass_on(caller, request)).await;
        let mut answer = answered.unwrap_or_else(ApiError::into_response);
        answer.headers_mut().remove(HeaderName::from_static(PLATFORM_ERROR));
        answer
    }

    async fn pass_on(&self, caller: &Caller, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        if !caller.is_there() {
            return Err(ApiError::new(
                ErrorCode::Unavailable,
                "this sandbox ends, so its calls are not passed on",
            ));
        }
        let Target { callee, how } = Target::of(&request)?;
        let place = Arc::clone(&caller.places).try_acquire_owned().map_err(|_| {
            let message = "this instance waits for as many other functions as it may: send fewer calls at once";
            ApiError::new(ErrorCode::TooManyRequests, message)
        })?;
        let parent = caller.chains.parent(traceparent(&request));
        let now = Instant::now();
        let until = parent.until.unwrap_or(now + USUAL_LIMIT);
        let left = until.saturating_duration_since(now);
        let call = FunctionCall {
            caller: caller.function.clone(),
            instance: caller.instance.clone(),
            callee,
            how,
            depth: parent.depth.saturating_add(1),
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        };
        let (mut head, body) = request.into_parts();
        strip_named(&mut head.headers, |name| name.starts_with("x-rekindle-"));
        strip_hop_by_hop_but_upgrade(&mut head.headers);
        for name in [CONNECTION, UPGRADE] {
            head.headers.remove(name);
        }
        if let (false, Some(trace)) = (head.headers.contains_key(TRACEPARENT), parent.traceparent) {
            head.headers.insert(HeaderName::from_static(TRACEPARENT), trace);
        }
        let said = call
            .to_header()
            .ok_or_else(|| ApiError::new(ErrorCode::Internal, "a function's call cannot be written as a header"))?;
        head.headers.insert(HeaderName::from_static(FUNCTION_CALL), said);
        head.version = http::Version::HTTP_11;
        head.extensions.clear();
        let answered = tokio::time::timeout_at(until, self.gateways.send(head, body)).await;
        let mut answer = answered.unwrap_or_else(|_| {
            let callee = &call.callee;
            Err(ApiError::new(
                ErrorCode::FunctionTimeout,
                format!(
                    "{callee} did not answer before its caller's own timeout: raise timeout in the caller's fn.toml"
                ),
            ))
        })?;
        strip_hop_by_hop_but_upgrade(answer.headers_mut());
        // The place is held until the last byte of the response.
        Ok(answer.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _held = &place;
                frame
            }))
        }))
    }
}
