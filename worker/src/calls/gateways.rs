//! The gateways, as this worker passes calls of functions on to them: directly if one is in the same process, otherwise
//! over a connection pool. The scheduler tells which there are.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::TRANSFER_ENCODING;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use http_body::{Body as _, Frame, SizeHint};
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::{Mutex, RwLock};
use rekindle_identity::{Connector, Member, Role, TlsError};
use rekindle_relay::{ConnectionPool, HeadLimits, InProcessRoles, KeepAlive, SendError};
use rekindle_wire::headers::CLUSTER_TOKEN;
use rekindle_wire::interface::version;
use rekindle_wire::{ApiError, ErrorCode};
use tower::ServiceExt as _;

/// How long a connection to a gateway may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// A gateway whose host is silent for this long is given up.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// How long a call waits for the first news of gateways, and the interval of checks.
const NEWS_LIMIT: Duration = Duration::from_secs(3);
const NEWS_LOOK: Duration = Duration::from_millis(50);

/// The gateways.
pub struct Gateways {
    connector: Connector,
    scheme: &'static str,
    token: String,
    in_process: InProcessRoles,
    known: RwLock<Arc<[Arc<str>]>>,
    next: AtomicUsize,
    pools: Mutex<HashMap<Arc<str>, ConnectionPool>>,
}

impl Gateways {
    /// Knows none yet.
    ///
    /// # Errors
    /// Returns an error when the worker's certificate cannot be used.
    pub fn new(member: Option<&Member>, token: String, in_process: InProcessRoles) -> Result<Self, TlsError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        connector.set_keepalive(Some(SILENT_AFTER));
        connector.set_keepalive_interval(Some(SILENT_AFTER / 5));
        connector.set_tcp_user_timeout(Some(SILENT_AFTER));
        Ok(Self {
            connector: rekindle_identity::connector(connector, member, Role::Gateway)?,
            scheme: if member.is_some() { "https" } else { "http" },
            token,
            in_process,
            known: RwLock::default(),
            next: AtomicUsize::new(0),
            pools: Mutex::default(),
        })
    }

    /// Learns the addresses of those that take calls.
    pub fn learn(&self, addresses: &[String]) {
        if self
            .known
            .read()
            .iter()
            .map(|known| &**known)
            .eq(addresses.iter().map(String::as_str))
        {
            return;
        }
        let known: Arc<[Arc<str>]> = addresses.iter().map(|address| Arc::from(address.as_str())).collect();
        self.pools.lock().retain(|address, _| known.contains(address));
        *self.known.write() = known;
    }

    /// Those known, after a while if there are none yet.
    async fn known(&self) -> Arc<[Arc<str>]> {
        let end = tokio::time::Instant::now() + NEWS_LIMIT;
        loop {
            let known = Arc::clone(&self.known.read());
            if !known.is_empty() || tokio::time::Instant::now() >= end {
                return known;
            }
            tokio::time::sleep(NEWS_LOOK).await;
        }
    }

    /// Sends a request to a gateway, and waits for the response's head. One that cannot be reached has seen nothing, so
    /// another is tried.
    ///
    /// # Errors
    /// Returns `unavailable` if no gateway can be reached, or the connection breaks.
    pub(super) async fn send(&self, mut head: Parts, body: Body) -> Result<Response<Body>, ApiError> {
        let token = HeaderValue::from_str(&self.token).map_err(|_| unavailable("the cluster's token is unusable"))?;
        head.headers.insert(HeaderName::from_static(CLUSTER_TOKEN), token);
        head.headers.extend([version::header()]);
        if body.size_hint().exact().is_none() {
            // Set explicitly, because a GET would otherwise lose its body.
            head.headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let known = self.known().await;
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let body = ResendableBody(Arc::new(Mutex::new(body)));
        for at in 0..known.len() {
            let address = &known[first.wrapping_add(at) % known.len()];
            let mut head = head.clone();
            head.uri = format!("{}://{address}{path}", self.scheme)
                .parse::<Uri>()
                .map_err(|e| ApiError::new(ErrorCode::BadRequest, format!("the path cannot be passed on: {e}")))?;
            match self
                .send_to(address, Request::from_parts(head, Body::new(body.clone())))
                .await
            {
                Ok(answer) => return Ok(answer),
                Err(SendError::Connect(error)) => {
                    tracing::debug!(gateway = %address, %error, "a gateway cannot be reached");
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(gateway = %address, error, "a gateway's connection broke");
                    return Err(unavailable(
                        "the connection to the gateway broke before the called function answered: it may have run",
                    ));
                }
            }
        }
        Err(unavailable(match known.is_empty() {
            true => "no gateway takes calls of functions: its operator starts gateways with --functions-listen",
            false => "no gateway can be reached from this worker: try again; `fn status` shows the platform",
        }))
    }

    async fn send_to(&self, address: &Arc<str>, request: Request<Body>) -> Result<Response<Body>, SendError> {
        let request = match self.in_process.pass(address, request) {
            Ok(answering) => return Ok(answering.await),
            Err(request) => request,
        };
        let pool = self
            .pools
            .lock()
            .entry(Arc::clone(address))
            .or_insert_with(pool)
            .clone();
        let connect = || async {
            let uri = Uri::builder()
                .scheme(self.scheme)
                .authority(&**address)
                .path_and_query("/")
                .build()?;
            self.connector.clone().oneshot(uri).await
        };
        let sent = pool.send(request, connect).await?;
        Ok(sent.map(Body::new))
    }
}

fn pool() -> ConnectionPool {
    ConnectionPool::new(HeadLimits::PLATFORM, KeepAlive::Unlimited)
}

fn unavailable(message: &str) -> ApiError {
    ApiError::new(ErrorCode::Unavailable, message)
}

/// A body that can be sent to another gateway if the first has not seen any of it.
#[derive(Clone)]
struct ResendableBody(Arc<Mutex<Body>>);

impl http_body::Body for ResendableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.0.lock()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}
