//! Listens for plain connections, or for those of the cluster's members. Handshakes run concurrently, and each
//! connection comes with its caller. Callers without a certificate may connect in order to join. The routes decide what
//! else they may do.

use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse as _;
use futures::FutureExt as _;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::Service as _;

use crate::member::Member;
use crate::peer::Peer;
use crate::revoked::{NotRevoked, RevocableStream, Revoked};
use rekindle_wire::interface::Role;

/// Time limit of a handshake.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent handshakes. Further connections wait in the kernel.
const AT_ONCE: usize = 512;
/// Maximum header lines of a request: a client's 256, plus those added by the platform.
const HEADERS_MAX: usize = 320;
/// Largest head of such a request over HTTP/2, with 32 bytes for each line.
const HEAD_MAX: u32 = 128 << 10;
/// Maximum number of requests at once on a connection of HTTP/2. A gateway has one to a worker for the calls of all.
const STREAMS_MAX: u32 = 200;
/// Bytes of a request's body that may come before they are read, over HTTP/2. As many are on a connection for each of
/// its requests: bodies that no function reads must not stop the others.
const WINDOW: u32 = 128 << 10;
/// The first byte of a TLS connection.
const HANDSHAKE: u8 = 22;
const PLAIN: &str = "{\"code\":\"unauthorized\",\"message\":\"this port speaks TLS with members of its cluster: use \
                     https, and a certificate of the cluster's authority \
                     (docs/how-to/secure-a-cluster-with-tls.md)\"}";

/// The caller at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Anyone: the listener requires no certificates, and the token in each call decides.
    Plain,
    /// A member of the cluster.
    Member(Peer),
    /// A caller without a certificate.
    Stranger,
}

/// A role's service for requests from its own process. The caller counts as one on a listener without certificates. A
/// panic becomes a response too, 500, because the caller is another role and continues.
pub fn inside(router: Router) -> impl Fn(Request<Body>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> {
    move |mut request| {
        request.extensions_mut().insert(ConnectInfo(Caller::Plain));
        let mut router = router.clone();
        let answering = async move { router.call(request).await.into_response() };
        Box::pin(async move {
            let answered = AssertUnwindSafe(answering).catch_unwind().await;
            answered.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
        })
    }
}

impl Caller {
    /// Whether it has one of these roles, as far as this listener checks.
    pub fn is_one_of(&self, roles: &[Role]) -> bool {
        match self {
            Self::Plain => true,
            Self::Member(peer) => roles.contains(&peer.role),
            Self::Stranger => false,
        }
    }

    /// Whether it may speak for the worker with this id.
    pub fn may_be_worker(&self, id: &str) -> bool {
        match self {
            Self::Plain => true,
            Self::Member(peer) => peer.role == Role::Worker && peer.name == id,
            Self::Stranger => false,
        }
    }

    /// Describes the caller in a rejection.
    pub fn described(&self) -> String {
        match self {
            Self::Plain => "a caller".to_owned(),
            Self::Member(peer) => format!("the {peer}"),
            Self::Stranger => "a caller without a certificate".to_owned(),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub enum Connection {
    /// A plain connection.
    Plain(TcpStream),
    /// A connection after its handshake. It ends when the member at its other end is revoked.
    Guarded(Box<RevocableStream<TlsStream<TcpStream>>>),
}

impl Connection {
    fn caller(&self) -> Caller {
        match self {
            Self::Plain(_) => Caller::Plain,
            Self::Guarded(stream) => {
                let shown = stream.get_ref().get_ref().1.peer_certificates().and_then(<[_]>::first);
                shown.and_then(Peer::of).map_or(Caller::Stranger, Caller::Member)
            }
        }
    }
}

/// A role's listener. Its connections use TCP_NODELAY.
#[derive(Debug)]
pub struct Listener {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Plain(TcpListener),
    Guarded(mpsc::Receiver<Connection>),
}

impl Listener {
    /// A listener for members of this member's cluster, or for plain connections if there is no member.
    ///
    /// # Errors
    /// If the member's certificate cannot be used for a server.
    pub fn new(listener: TcpListener, member: Option<&Member>) -> io::Result<Self> {
        let Some(member) = member else {
            return Ok(Self {
                source: Source::Plain(listener),
            });
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&member.roots), Arc::clone(&member.provider))
                .allow_unauthenticated()
                .build()
                .map_err(io::Error::other)?;
        let revoked = Arc::clone(member.revoked());
        let verifier = Arc::new(NotRevoked {
            usual: verifier,
            revoked: Arc::clone(&revoked),
        });
        let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&member.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(member.shown.clone());
        let (ready, source) = mpsc::channel(1);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(accept(listener, acceptor, revoked, ready));
        Ok(Self {
            source: Source::Guarded(source),
        })
    }

    async fn accept(&mut self) -> Connection {
        match &mut self.source {
            Source::Plain(listener) => {
                let (stream, _) = axum::serve::Listener::accept(listener).await;
                // A failure only makes the connection slower.
                let _ = stream.set_nodelay(true);
                Connection::Plain(stream)
            }
            Source::Guarded(ready) => match ready.recv().await {
                Some(connection) => connection,
                // The accepting task only ends with this listener.
                None => std::future::pending().await,
            },
        }
    }

    /// Serves the routes until `shutdown` resolves, then finishes the requests in flight. Handlers get the [`Caller`]
    /// as `ConnectInfo`.
    pub async fn serve(mut self, router: Router, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let (ending, ended) = watch::channel(());
        loop {
            let connection = tokio::select! {
                connection = self.accept() => connection,
                () = &mut shutdown => break,
            };
            let (caller, router) = (connection.caller(), router.clone());
            let answer = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(ConnectInfo(caller.clone()));
                router.clone().call(request.map(Body::new))
            });
            tokio::spawn(serve_connection(connection, answer, ended.clone()));
        }
        drop((self, ended));
        let _ = ending.send(());
        ending.closed().await;
    }
}

/// Serves one connection to its end, or, once `ended` fires, to the end of the requests in flight. Its first bytes say
/// whether it is one of HTTP/2, by which calls come that have trailers.
async fn serve_connection<S>(connection: Connection, answer: S, mut ended: watch::Receiver<()>)
where
    S: Service<Request<Incoming>, Response = Response<Body>> + Send,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().max_headers(HEADERS_MAX);
    http.http2()
        .max_header_list_size(HEAD_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * STREAMS_MAX);
    let mut served = pin!(http.serve_connection_with_upgrades(TokioIo::new(connection), answer));
    let result = tokio::select! {
        result = &mut served => result,
        _ = ended.changed() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Accepts connections until the receiver is gone.
async fn accept(
    mut listener: TcpListener,
    acceptor: TlsAcceptor,
    revoked: Arc<Revoked>,
    ready: mpsc::Sender<Connection>,
) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        let (stream, address) = tokio::select! {
            accepted = axum::serve::Listener::accept(&mut listener) => accepted,
            () = ready.closed() => return,
        };
        let (acceptor, revoked, ready) = (acceptor.clone(), revoked.clone(), ready.clone());
        tokio::spawn(async move {
            let _place = place;
            match tokio::time::timeout(LIMIT, shake_hands(stream, &acceptor, &revoked)).await {
                Ok(Ok(stream)) => drop(ready.send(Connection::Guarded(Box::new(stream))).await),
                Ok(Err(error)) => tracing::warn!(%address, error = %error, "a connection was refused"),
                Err(_) => tracing::debug!(%address, "a connection was silent"),
            }
        });
    }
}

async fn shake_hands(
    mut stream: TcpStream,
    acceptor: &TlsAcceptor,
    revoked: &Revoked,
) -> io::Result<RevocableStream<TlsStream<TcpStream>>> {
    // A failure only makes the connection slower.
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        let answer = format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\
             \r\n{PLAIN}",
            PLAIN.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Its remaining input is read, because otherwise a reset would discard the response.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        return Err(io::Error::other("it does not speak TLS"));
    }
    let stream = acceptor.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
    revoked.keep(stream, shown.as_ref()).map_err(io::Error::other)
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Guarded(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Guarded(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Guarded(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Guarded(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Guarded(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Guarded(stream) => stream.is_write_vectored(),
        }
    }
}
