//! HTTP connections into an instance, opened inside its network namespace and kept alive between requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rekindle_relay::{
    ConnectionPool, HeadLimits, Http2Connections, KeepAlive, Reply, SendError, StreamLimits, WatchedStream,
};
use rekindle_wire::function_config::{FunctionConfig, Protocol};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::counted::{ByteCounter, ByteCounts};
use crate::host::sandbox::Sandbox;

/// Where the platform's own requests go. Frameworks check the host, and most allow this one.
pub(crate) fn own_url(path: &str) -> String {
    format!("http://localhost{path}")
}

/// How long a connection that is made ahead may take: a function may let its queue of connections run full.
const AHEAD_LIMIT: Duration = Duration::from_millis(200);

/// The body of a function's response.
pub type FunctionBody = Reply;

/// Sends requests into one sandbox.
pub struct FunctionClient {
    sandbox: Arc<Sandbox>,
    port: u16,
    connections: Connections,
    /// What went over the connection that was made last.
    last: Mutex<Arc<ByteCounts>>,
}

/// Connections to a function, of the protocol that it speaks.
enum Connections {
    Http1(ConnectionPool),
    Http2(Http2Connections),
}

impl FunctionClient {
    /// The port on which the function listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Creates a client with no connection, for the function in the sandbox that this config describes.
    pub fn new(sandbox: &Arc<Sandbox>, config: &FunctionConfig) -> Self {
        let limits = HeadLimits::FUNCTION;
        Self {
            sandbox: Arc::clone(sandbox),
            port: config.port,
            last: Mutex::default(),
            connections: match config.protocol {
                Protocol::Http1 => {
                    let pool = ConnectionPool::new(limits, KeepAlive::Timeout);
                    // Handlers are served by the platform's own programs, which read bodies to their ends. A copy of a
                    // function with `fresh` serves again only after a reset, which has looked for what is left.
                    Connections::Http1(match config.streams() && !config.fresh {
                        true => pool.without_reuse_after_bodies(),
                        false => pool,
                    })
                }
                Protocol::H2c => Connections::Http2(Http2Connections::new(limits, StreamLimits::FUNCTION)),
            },
        }
    }

    /// Sends a request. The host in its URI is used only if the request has no `Host` header.
    ///
    /// # Errors
    /// Returns an error when no connection can be made, or when the connection breaks.
    pub async fn send(&self, request: http::Request<Body>) -> Result<http::Response<FunctionBody>, SendError> {
        let connect = || self.connect();
        match &self.connections {
            Connections::Http1(pool) => pool.send(request, connect).await,
            Connections::Http2(connections) => connections.send(request, connect).await,
        }
    }

    /// Connects for the next request, if there is no connection yet. If it takes long, the request makes its own.
    pub async fn connect_ahead(&self) {
        if let Connections::Http1(pool) = &self.connections {
            drop(timeout(AHEAD_LIMIT, pool.connect_ahead(|| self.connect())).await);
        }
    }

    async fn connect(&self) -> io::Result<TokioIo<WatchedStream<TcpStream, ByteCounter>>> {
        let stream = self.sandbox.connect(self.port).await?;
        let counts = Arc::<ByteCounts>::default();
        *self.last.lock() = Arc::clone(&counts);
        Ok(TokioIo::new(WatchedStream::new(stream, ByteCounter(counts))))
    }

    /// Returns whether each request has a connection to itself, as long as it lasts.
    pub(super) fn is_http1(&self) -> bool {
        matches!(self.connections, Connections::Http1(_))
    }

    /// Returns what went over its connection, if it has one alone, over which nothing is under way.
    pub(super) fn at_rest(&self) -> Option<Arc<ByteCounts>> {
        match &self.connections {
            Connections::Http1(pool) if pool.is_at_rest() => Some(Arc::clone(&self.last.lock())),
            Connections::Http1(_) | Connections::Http2(_) => None,
        }
    }

    /// Closes idle connections. A checkpoint should find none.
    pub fn close_idle(&self) {
        match &self.connections {
            Connections::Http1(pool) => pool.close_idle(),
            Connections::Http2(connections) => connections.close_idle(),
        }
    }
}
