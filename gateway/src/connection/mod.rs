//! A client's connection: how it is served, and how slow its client may be.
//!
//! ```text
//!              first byte of a head        the head is whole          the response's body is over
//!     waiting ─────────────────────> head ───────────────────> busy ───────────────────────────> waiting
//!        │                            │                          │
//!        └─ IDLE_LIMIT: closed        └─ head_limit: 408         └─ below the minimum rate: closed
//!
//!     TLS: a handshake comes first, within head_limit. HTTP/2: the same for each stream, and what is late closes the
//!     connection.
//! ```
//!
//! `pacing` is the stream that enforces these times, `phase` what it knows of the requests on it. `refusal` turns
//! clients away that are not served at all. `preface` tells HTTP/2 from HTTP/1.1 where no handshake does. `http2`
//! bounds streams, and `frames` times their heads. A request's body has a limit of its own (`body`). What comes of one
//! that was not waited for is dropped for a while (`linger`).

mod frames;
mod http2;
mod linger;
mod pacing;
mod phase;
mod preface;
mod refusal;
mod unsent;

pub(crate) use http2::WINDOW;

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rekindle_relay::{HeadLimits, Tunnel};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clients::ClientPermit;
use crate::metrics::Metrics;
use crate::pace::MinRate;
use crate::tls::{Certificates, ClientCertificate, H2};
use linger::UnreadBody;
use pacing::Paced;
use phase::{GuardedBody, Phase};
use preface::ReadAhead;
pub(crate) use refusal::Refusals;

/// How long a connection is kept on which nothing comes.
const IDLE_LIMIT: Duration = Duration::from_secs(75);
/// Largest head that is read, and the most that is read ahead of a body, bytes. It is twice what is served, as is
/// [`HEADERS_MAX`], so that a client that sends too much is told so: beyond it hyper ends the connection with an empty
/// response.
const BUFFER_MAX: usize = 2 * HeadLimits::FUNCTION.bytes;
/// Maximum number of header lines that are read.
const HEADERS_MAX: usize = 2 * HeadLimits::FUNCTION.lines;

/// How slow a client may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Limit from a head's first byte to its last, and for a handshake.
    pub(crate) head: Duration,
    /// Minimum rate for taking responses.
    pub(crate) rate: MinRate,
}

/// How a request came.
#[derive(Debug, Clone)]
pub(crate) struct RequestOrigin {
    /// The connection's other end.
    pub(crate) peer: IpAddr,
    /// Over TLS: name of the certificate that was shown.
    pub(crate) certificate: Option<Arc<str>>,
    /// The certificate that the client showed.
    pub(crate) client: Option<Arc<ClientCertificate>>,
}

pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Answers a request. Also returns what its client holds meanwhile. Cancelling the token says that the response
    /// ended early.
    fn answer(
        &self,
        request: Request<Body>,
        via: &RequestOrigin,
        connection: CancellationToken,
    ) -> impl Future<Output = (Response<Body>, Option<Arc<ClientPermit>>)> + Send;
}

/// What a TLS listener's connections begin with.
#[derive(Clone)]
pub(crate) struct Handshakes {
    pub(crate) certificates: Arc<Certificates>,
}

struct ConnectionContext<A> {
    answering: Arc<A>,
    via: Arc<RequestOrigin>,
    phase: Arc<Phase>,
    limits: Limits,
    metrics: Arc<Metrics>,
    /// No more requests are taken once this changes.
    ended: watch::Receiver<()>,
}

/// Serves a connection until it ends. Once `ended` changes, only requests in flight are completed.
pub(crate) async fn serve<A: RequestHandler>(
    answering: Arc<A>,
    (stream, peer): (TcpStream, SocketAddr),
    tls: Option<Handshakes>,
    limits: Limits,
    metrics: Arc<Metrics>,
    ended: watch::Receiver<()>,
) {
    // It fails on a socket that is already closed; the first read then reports that.
    drop(stream.set_nodelay(true));
    let phase = Arc::new(Phase::default());
    let stream = Paced::new(stream, limits, phase.clone(), metrics.clone(), tls.is_none());
    let serving = |certificate, client| ConnectionContext {
        answering,
        via: Arc::new(RequestOrigin {
            peer: peer.ip(),
            certificate,
            client,
        }),
        phase: phase.clone(),
        limits,
        metrics: metrics.clone(),
        ended,
    };
    let result = match tls {
        None => {
            let begun = tokio::time::timeout(IDLE_LIMIT, ReadAhead::of(stream)).await;
            let (stream, is_h2) = match begun {
                Ok(Ok(begun)) => begun,
                Ok(Err(error)) => return tracing::debug!(%peer, %error, "a client's connection ended early"),
                Err(_) => return tracing::debug!(%peer, "a client's connection was silent"),
            };
            let serving = serving(None, None);
            if is_h2 {
                phase.shaken(true);
                Box::pin(http2::serve(stream, serving)).await
            } else {
                http1(stream, serving).await
            }
        }
        Some(handshakes) => {
            let shaken = tokio::time::timeout(limits.head, handshakes.certificates.acceptor().accept(stream)).await;
            let stream = match shaken {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    metrics.handshake("failed");
                    return tracing::debug!(%peer, %error, "a client's handshake failed");
                }
                Err(_) => {
                    metrics.handshake("timed_out");
                    return tracing::debug!(%peer, "a client's handshake took too long");
                }
            };
            metrics.handshake("made");
            let session = stream.get_ref().1;
            let is_h2 = session.alpn_protocol() == Some(H2);
            let shown = handshakes.certificates.shown_for(session.server_name());
            let serving = serving(Some(shown), handshakes.certificates.of_client(session));
            phase.shaken(is_h2);
            match is_h2 {
                true => Box::pin(http2::serve(stream, serving)).await,
                false => Box::pin(http1(stream, serving)).await,
            }
        }
    };
    match result {
        Ok(ConnectionEnd::Closed) => {}
        Ok(ConnectionEnd::Cut(why)) => tracing::debug!(%peer, why, "a client's connection was cut off"),
        Err(error) => tracing::debug!(%peer, %error, "a client's connection ended early"),
    }
}

/// How a connection ended that did not break.
enum ConnectionEnd {
    /// It was closed normally.
    Closed,
    /// It was closed for this reason.
    Cut(&'static str),
}

/// Serves one request at a time.
async fn http1<A: RequestHandler>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    serving: ConnectionContext<A>,
) -> hyper::Result<ConnectionEnd> {
    let ConnectionContext {
        answering,
        via,
        phase,
        metrics,
        mut ended,
        ..
    } = serving;
    let cut = CancellationToken::new();
    let cutting = cut.clone();
    // The other end of the connection once it has changed its protocol.
    let changed = Arc::new(Mutex::new(None));
    let changing = Arc::clone(&changed);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (answering, cutting, phase, via) = (answering.clone(), cutting.clone(), phase.clone(), via.clone());
        let (changing, metrics) = (Arc::clone(&changing), Arc::clone(&metrics));
        async move {
            let busy = phase.clone().busy();
            let near = hyper::upgrade::on(&mut request);
            let request = request.map(|body| Body::new(UnreadBody::new(body, phase.clone())));
            let (mut answer, client) = answering.answer(request, &via, cutting).await;
            if let Some(tunnel) = Tunnel::take(&mut answer) {
                let tunnel = tunnel.holding((phase.busy(), client.clone(), metrics.tunnels.clone()));
                *changing.lock() = Some((tunnel, near));
            }
            Ok::<_, Infallible>(answer.map(|body| GuardedBody::new(body, busy, client)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let serving = async {
        tokio::select! {
            result = &mut connection => result,
            _ = ended.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        result = serving => result?,
        // The client did not read a response to its end in time.
        () = cut.cancelled() => return Ok(ConnectionEnd::Cut("an answer's deadline")),
    }
    let Some((tunnel, near)) = changed.lock().take() else {
        return Ok(ConnectionEnd::Closed);
    };
    tokio::select! {
        passed = tunnel.join(near) => match passed {
            Ok(()) => Ok(ConnectionEnd::Closed),
            Err(_) => Ok(ConnectionEnd::Cut("its tunnel broke or was silent")),
        },
        _ = ended.changed() => Ok(ConnectionEnd::Cut("the gateway ends")),
    }
}
