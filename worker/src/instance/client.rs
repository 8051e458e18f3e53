//! HTTP connections into an instance, opened inside its network namespace and kept alive between requests.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::sandbox::Sandbox;

/// The port every function serves HTTP on, inside its sandbox.
pub const PORT: u16 = 8080;
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(60);

type HttpClient = Client<Connector, Body>;

/// Sends requests into one sandbox.
pub struct FunctionClient {
    sandbox: Arc<Sandbox>,
    client: Mutex<HttpClient>,
}

impl FunctionClient {
    /// A client that has no connection yet.
    pub fn new(sandbox: &Arc<Sandbox>) -> Self {
        Self {
            sandbox: Arc::clone(sandbox),
            client: Mutex::new(build(sandbox)),
        }
    }

    /// Sends a request; its URI's host does not matter.
    ///
    /// # Errors
    /// When no connection can be made or it breaks.
    pub async fn send(&self, request: http::Request<Body>) -> Result<http::Response<hyper::body::Incoming>, Error> {
        let client = self.client.lock().clone();
        client.request(request).await
    }

    /// Closes the connections that are not in use. A checkpoint should find none.
    pub fn close_idle(&self) {
        *self.client.lock() = build(&self.sandbox);
    }
}

fn build(sandbox: &Arc<Sandbox>) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(64)
        .build(Connector(Arc::clone(sandbox)))
}

#[derive(Clone)]
struct Connector(Arc<Sandbox>);

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let sandbox = Arc::clone(&self.0);
        Box::pin(async move { Ok(Stream(TokioIo::new(sandbox.connect(PORT).await?))) })
    }
}

/// A connection into a sandbox.
struct Stream(TokioIo<TcpStream>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl hyper::rt::Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }
}
