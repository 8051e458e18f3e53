//! HTTP connections into an instance, opened inside its network namespace and kept alive between requests.

use std::sync::Arc;

use axum::body::Body;
use hyper_util::rt::TokioIo;
use rekindle_relay::{ConnectionPool, HeadLimits, KeepAlive, Reply, SendError};

use crate::host::sandbox::Sandbox;

/// The port on which every function serves HTTP inside its sandbox.
pub const PORT: u16 = 8080;

/// Where the platform's own requests go. Frameworks check the host, and most allow this one.
pub(crate) fn own_url(path: &str) -> String {
    format!("http://localhost{path}")
}

/// The body of a function's response.
pub type FunctionBody = Reply;

/// Sends requests into one sandbox.
pub struct FunctionClient {
    sandbox: Arc<Sandbox>,
    pool: ConnectionPool,
}

impl FunctionClient {
    /// Creates a client with no connection.
    pub fn new(sandbox: &Arc<Sandbox>) -> Self {
        Self {
            sandbox: Arc::clone(sandbox),
            pool: ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout),
        }
    }

    /// Sends a request. The host in its URI is used only if the request has no `Host` header.
    ///
    /// # Errors
    /// Returns an error when no connection can be made, or when the connection breaks.
    pub async fn send(&self, request: http::Request<Body>) -> Result<http::Response<FunctionBody>, SendError> {
        let connect = || async { self.sandbox.connect(PORT).await.map(TokioIo::new) };
        self.pool.send(request, connect).await
    }

    /// Closes idle connections. A checkpoint should find none.
    pub fn close_idle(&self) {
        self.pool.close_idle();
    }
}
