//! A client's connection: what it is served, and how slow its client may be.
//!
//! ```text
//!            first byte of a head        the head is whole          the answer's body is over
//!   waiting ─────────────────────> head ───────────────────> busy ───────────────────────────> waiting
//!      │                            │                          │
//!      └─ IDLE_LIMIT: closed        └─ head_limit: 408         └─ answer not taken at the minimum rate: closed
//! ```
//!
//! `pacing` is the stream that keeps these times, `phase` what it knows of the requests on it, `refusal` how somebody is turned away who is not
//! served at all. The time that a request's body may take is its own (`body`).

mod pacing;
mod phase;
mod refusal;
mod unsent;

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
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clients::Held;
use crate::metrics::Metrics;
use crate::pace::MinRate;
use pacing::Paced;
use phase::{Phase, Watched};
pub(crate) use refusal::Refusals;

/// How long a connection is kept on which nothing comes.
const IDLE_LIMIT: Duration = Duration::from_secs(75);
/// The largest head, and the most that is read ahead of a body, bytes.
const BUFFER_MAX: usize = 128 << 10;

/// How slow a client may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From a head's first byte to its last.
    pub(crate) head: Duration,
    /// For taking answers.
    pub(crate) rate: MinRate,
}

/// Answers requests.
pub(crate) trait Answering: Send + Sync + 'static {
    /// Answers one, and says what its client holds meanwhile. The token closes the connection.
    fn answer(
        &self,
        request: Request<Body>,
        peer: IpAddr,
        connection: CancellationToken,
    ) -> impl Future<Output = (Response<Body>, Option<Arc<Held>>)> + Send;
}

/// Serves a connection until it ends, or until what is under way is over once `ended` says so.
pub(crate) async fn serve<A: Answering>(
    answering: Arc<A>,
    (stream, peer): (TcpStream, SocketAddr),
    limits: Limits,
    metrics: Arc<Metrics>,
    mut ended: watch::Receiver<()>,
) {
    // It fails on a socket that is closed already; the first read then says so.
    drop(stream.set_nodelay(true));
    let cut = CancellationToken::new();
    let cutting = cut.clone();
    let phase = Arc::new(Phase::default());
    let stream = Paced::new(stream, limits, phase.clone(), metrics);
    let service = service_fn(move |request: Request<Incoming>| {
        let (answering, cutting, phase) = (answering.clone(), cutting.clone(), phase.clone());
        async move {
            let busy = phase.busy();
            let (answer, client) = answering.answer(request.map(Body::new), peer.ip(), cutting).await;
            Ok::<_, Infallible>(answer.map(|body| Watched::new(body, busy, client)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), service);
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
    let result = tokio::select! {
        result = serving => result,
        // Its client did not read an answer to its end in time.
        () = cut.cancelled() => return tracing::debug!(%peer, "a client's connection was cut off at an answer's deadline"),
    };
    if let Err(error) = result {
        tracing::debug!(%peer, %error, "a client's connection ended early");
    }
}
