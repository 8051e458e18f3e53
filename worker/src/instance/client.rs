//! HTTP connections into an instance, opened inside its network namespace and kept alive between requests.

use std::sync::Arc;

use axum::body::Body;
use hyper_util::rt::TokioIo;
use rekindle_relay::{ConnectionPool, HeadLimits, Reply, SendError};
use tokio::net::TcpStream;

use crate::host::sandbox::Sandbox;

/// The port every function serves HTTP on, inside its sandbox.
pub const PORT: u16 = 8080;

/// The body of a function's answer.
pub type FunctionBody = Reply<TokioIo<TcpStream>>;

/// Sends requests into one sandbox.
pub struct FunctionClient {
    sandbox: Arc<Sandbox>,
    lines: ConnectionPool<TokioIo<TcpStream>>,
}

impl FunctionClient {
    /// A client that has no connection yet.
    pub fn new(sandbox: &Arc<Sandbox>) -> Self {
        Self {
            sandbox: Arc::clone(sandbox),
            lines: ConnectionPool::new(HeadLimits::FUNCTION),
        }
    }

    /// Sends a request; its URI's host is only told where it has no `Host` header.
    ///
    /// # Errors
    /// When no connection can be made or it breaks.
    pub async fn send(&self, request: http::Request<Body>) -> Result<http::Response<FunctionBody>, SendError> {
        let connect = || async { self.sandbox.connect(PORT).await.map(TokioIo::new) };
        self.lines.send(request, connect).await
    }

    /// Closes the connections that are not in use. A checkpoint should find none.
    pub fn close_idle(&self) {
        self.lines.close_idle();
    }
}
