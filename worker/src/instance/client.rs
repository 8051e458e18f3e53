//! HTTP connections into an instance, opened inside its network namespace and kept alive between requests.

use std::sync::Arc;

use axum::body::Body;
use hyper_util::rt::TokioIo;
use rekindle_relay::{ConnectionPool, HeadLimits, KeepAlive, Reply, SendError};

use crate::host::sandbox::Sandbox;

/// Where the platform's own requests go. Frameworks check the host, and most allow this one.
pub(crate) fn own_url(path: &str) -> String {
    format!("http://localhost{path}")
}

/// The body of a function's response.
pub type FunctionBody = Reply;

/// Sends requests into one sandbox.
pub struct FunctionClient {
    sandbox: Arc<Sandbox>,
    port: u16,
    pool: ConnectionPool,
}

impl FunctionClient {
    /// The port on which the function listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Creates a client with no connection, for the function that listens on `port` in the sandbox.
    pub fn new(sandbox: &Arc<Sandbox>, port: u16) -> Self {
        Self {
            sandbox: Arc::clone(sandbox),
            port,
            pool: ConnectionPool::new(HeadLimits::FUNCTION, KeepAlive::Timeout),
        }
    }

    /// Sends a request. The host in its URI is used only if the request has no `Host` header.
    ///
    /// # Errors
    /// Returns an error when no connection can be made, or when the connection breaks.
    pub async fn send(&self, request: http::Request<Body>) -> Result<http::Response<FunctionBody>, SendError> {
        let connect = || async { self.sandbox.connect(self.port).await.map(TokioIo::new) };
        self.pool.send(request, connect).await
    }

    /// Closes idle connections. A checkpoint should find none.
    pub fn close_idle(&self) {
        self.pool.close_idle();
    }
}
