//! The only network egress of a build: an HTTP proxy of the worker. It listens in the build's own network namespace and
//! connects from the worker's to hosts that are allowed.
//!
//! ```text
//! pip, npm ─► 127.0.0.1:3128 ─┬─ CONNECT host:443  ─► allowed? ─► addresses, judged ─► bytes both ways
//!   (their namespace)         └─ GET http://host/… ─►    │ no: 403, and the deployer is told which
//! ```

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::allow::{AllowedHosts, HostAccess, is_public};
use super::counts::BuildCounts;
use super::request::{Request, RequestMode};
use super::upstream::Upstream;
use crate::host::sandbox::NetworkNamespace;

/// Its address in the build's namespace.
pub(super) const ADDRESS: &str = "http://127.0.0.1:3128";
const PORT: u16 = 3128;
/// Maximum number of connections of one build at once. Further ones wait to be accepted.
const CONNECTIONS: usize = 64;
/// How long a request may take to arrive, a name to be resolved, and a connection to be made.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a request's head, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Maximum number of refused hosts that are kept for the report.
const REFUSED_MAX: usize = 8;

/// A build's network namespace, with the proxy in it. Both end with this value.
#[derive(Debug)]
pub(super) struct Proxy {
    network: NetworkNamespace,
    shared: Arc<ProxyState>,
    serving: AbortHandle,
}

#[derive(Debug)]
struct ProxyState {
    allowed: AllowedHosts,
    upstream: Option<Upstream>,
    refused: Mutex<BTreeSet<String>>,
    counts: BuildCounts,
    /// Number of bytes that may still pass.
    left: AtomicU64,
    time_limit: Duration,
}

/// Limits of a build's use of its proxy.
#[derive(Debug)]
pub(super) struct ProxyLimits {
    /// Bytes in both directions together.
    pub(super) bytes: u64,
    /// How long one connection may last.
    pub(super) time: Duration,
}

impl Proxy {
    /// Creates the namespace and begins to serve.
    pub(super) async fn open(allowed: AllowedHosts, counts: BuildCounts, limits: ProxyLimits) -> io::Result<Self> {
        let made = tokio::task::spawn_blocking(|| {
            let network = NetworkNamespace::make()?;
            let listener = network.within(|| {
                rekindle_init::namespaces::prepare_network().map_err(io::Error::other)?;
                std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
            })??;
            listener.set_nonblocking(true)?;
            io::Result::Ok((network, listener))
        });
        let (network, listener) = made.await.map_err(io::Error::other)??;
        let shared = Arc::new(ProxyState {
            allowed,
            upstream: Upstream::configured(),
            refused: Mutex::default(),
            counts,
            left: AtomicU64::new(limits.bytes),
            time_limit: limits.time,
        });
        let serving = tokio::spawn(serve(TcpListener::from_std(listener)?, Arc::clone(&shared)));
        Ok(Self {
            network,
            shared,
            serving: serving.abort_handle(),
        })
    }

    /// Returns the path of the namespace, for processes that join it.
    pub(super) fn namespace(&self) -> PathBuf {
        let descriptor = self.network.as_fd().as_raw_fd();
        PathBuf::from(format!("/proc/{}/fd/{descriptor}", std::process::id()))
    }

    /// Returns a report of refused hosts for the deployer; `None` if there were none.
    pub(super) fn refusals(&self) -> Option<String> {
        let refused = self.shared.refused.lock();
        let all: Vec<&str> = refused.iter().map(String::as_str).collect();
        (!all.is_empty()).then(|| {
            format!(
                "refused: {}; the operator allows {}: use those, or ask for --build-allow",
                all.join(", "),
                self.shared.allowed
            )
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Accepts connections as long as the build lasts. They end with this task.
async fn serve(listener: TcpListener, shared: Arc<ProxyState>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((client, _)) = listener.accept().await else {
            // Most likely, there are no free descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // The client notices a failure by the end of the connection.
            let _ = timeout(shared.time_limit, shared.connection(client)).await;
            drop(place);
        });
    }
}

/// Why a client gets no connection.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the request is not understood: CONNECT host:port, or an http:// address")]
    Malformed,
    #[error("{host} is refused; the operator allows {allowed}")]
    Host { host: String, allowed: String },
    #[error("{0} is refused: it has no public address, and the operator does not name it (--build-allow)")]
    Address(String),
    #[error("{0} cannot be reached: {1}")]
    Unreachable(String, io::Error),
}

impl Refusal {
    fn status(&self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Host { .. } | Self::Address(_) => 403,
            Self::Unreachable(..) => 502,
        }
    }
}

impl ProxyState {
    async fn connection(&self, mut client: TcpStream) -> io::Result<()> {
        let (head, rest) = timeout(HEAD_LIMIT, head(&mut client)).await??;
        let request = Request::parse(&head);
        let made = match &request {
            Some(request) => self.reach(&request.host, request.port).await,
            None => Err(Refusal::Malformed),
        };
        let (request, mut server) = match (request, made) {
            (Some(request), Ok(server)) => (request, server),
            (_, Err(refusal)) => return self.refuse(client, &refusal).await,
            (None, Ok(_)) => return Ok(()),
        };
        self.counts.connection("passed");
        tracing::debug!(host = request.host, port = request.port, "a build connects");
        match request.mode {
            RequestMode::Tunnel => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
            RequestMode::Forward(head) => server.write_all(head.as_bytes()).await?,
        }
        server.write_all(&rest).await?;
        let mut server = Metered {
            inner: server,
            left: &self.left,
            counts: &self.counts,
        };
        copy_bidirectional(&mut client, &mut server).await.map(drop)
    }

    async fn refuse(&self, mut client: TcpStream, refusal: &Refusal) -> io::Result<()> {
        match refusal {
            Refusal::Host { host, .. } | Refusal::Address(host) => {
                let mut refused = self.refused.lock();
                if refused.len() < REFUSED_MAX {
                    refused.insert(host.clone());
                }
                self.counts.connection("refused");
                tracing::info!(host, "a build was refused a host");
            }
            Refusal::Malformed | Refusal::Unreachable(..) => self.counts.connection("failed"),
        }
        // The text is also the reason phrase: some programs show nothing else of a refused CONNECT.
        let (status, text) = (refusal.status(), refusal.to_string());
        let answer = format!(
            "HTTP/1.1 {status} {text}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: \
             close\r\n\r\n{text}\n",
            text.len() + 1
        );
        client.write_all(answer.as_bytes()).await?;
        client.shutdown().await
    }

    /// Connects to the host, if it may be reached.
    async fn reach(&self, host: &str, port: u16) -> Result<TcpStream, Refusal> {
        let named = || format!("{host}:{port}");
        let reach = self.allowed.reach(host, port);
        if reach == HostAccess::Refused {
            return Err(Refusal::Host {
                host: named(),
                allowed: self.allowed.to_string(),
            });
        }
        let unreachable = |e| Refusal::Unreachable(named(), e);
        if let Some(upstream) = self.upstream.as_ref().filter(|u| u.serves(host)) {
            let connecting = timeout(CONNECT_LIMIT, upstream.connect(host, port));
            return connecting.await.map_err(io::Error::from).flatten().map_err(unreachable);
        }
        let found = timeout(LOOKUP_LIMIT, tokio::net::lookup_host((host, port))).await;
        let found = found.map_err(io::Error::from).flatten().map_err(unreachable)?;
        let usable: Vec<SocketAddr> = found
            .filter(|a| reach == HostAccess::Anywhere || is_public(a.ip()))
            .collect();
        if usable.is_empty() {
            return Err(Refusal::Address(named()));
        }
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in usable {
            match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(e)) => last = e,
                Err(e) => last = e.into(),
            }
        }
        Err(unreachable(last))
    }
}

/// Reads a request's head, with its empty line. Also returns the bytes after it.
async fn head(client: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((bytes, rest));
        }
        if bytes.len() > HEAD_MAX {
            return Ok((Vec::new(), Vec::new()));
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The connection to a server, with its bytes counted. It breaks when there were too many.
struct Metered<'a> {
    inner: TcpStream,
    left: &'a AtomicU64,
    counts: &'a BuildCounts,
}

impl Metered<'_> {
    fn passed(&self, direction: &'static str, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        self.counts.bytes(direction, bytes);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken
            .map(drop)
            .map_err(|_| io::Error::other("the build has had as many bytes as it may"))
    }
}

impl tokio::io::AsyncRead for Metered<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let before = into.filled().len();
        std::task::ready!(std::pin::Pin::new(&mut self.inner).poll_read(cx, into))?;
        std::task::Poll::Ready(self.passed("received", into.filled().len() - before))
    }
}

impl tokio::io::AsyncWrite for Metered<'_> {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        from: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        let written = std::task::ready!(std::pin::Pin::new(&mut self.inner).poll_write(cx, from))?;
        self.passed("sent", written)?;
        std::task::Poll::Ready(Ok(written))
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
