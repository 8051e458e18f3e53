//! The workers, as a gateway reaches them: directly if one is in the same process, otherwise over a connection pool.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::UPGRADE;
use http::{Request, Response, Uri, Version};
use http_body::Body as _;
use parking_lot::Mutex;
use rekindle_identity::{Connector, Member, Role, TlsError};
use rekindle_relay::{
    ConnectionPool, HeadLimits, Http2Connections, InProcessRoles, KeepAlive, SendError, StreamLimits,
};
use tower::ServiceExt as _;

use crate::scheduler;

/// Bodies from this length on go over connections of their own, bytes. Shorter ones fit into the kernel's buffers.
const LONG: u64 = 64 << 10;
/// How long the function may pause in reading such a body. Its own time limit is shorter, or it reads.
const PAUSE: Duration = Duration::from_secs(900);

/// All workers. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Workers {
    connector: Connector,
    patient: Connector,
    scheme: &'static str,
    in_process: InProcessRoles,
    pools: Arc<Mutex<HashMap<Arc<str>, Pools>>>,
}

#[derive(Clone)]
struct Pools {
    http1: ConnectionPool,
    /// For long bodies, whose reader may pause.
    long: ConnectionPool,
    /// For requests that are of HTTP/2.
    http2: Http2Connections,
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            http1: ConnectionPool::new(HeadLimits::PLATFORM, KeepAlive::Unlimited),
            long: ConnectionPool::new(HeadLimits::PLATFORM, KeepAlive::Unlimited),
            http2: Http2Connections::new(HeadLimits::PLATFORM, StreamLimits::PLATFORM),
        }
    }
}

impl Workers {
    pub(crate) fn new(member: Option<&Member>, in_process: InProcessRoles) -> Result<Self, TlsError> {
        Ok(Self {
            connector: scheduler::connector(member, Role::Worker)?,
            patient: scheduler::connector_for(member, Role::Worker, PAUSE)?,
            scheme: scheduler::scheme(member),
            in_process,
            pools: Arc::default(),
        })
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Closes connections that were unused for long, above all those to workers that are gone.
    pub(crate) fn sweep(&self) {
        // A connection that is taken right now returns to its pool, which its taker holds, and is closed with it.
        self.pools.lock().retain(|_, pools| {
            let left = [pools.http1.sweep(), pools.long.sweep(), pools.http2.sweep()];
            left.contains(&true)
        });
    }

    /// Closes all unused connections.
    pub(crate) fn close_idle(&self) {
        self.pools.lock().values().for_each(|pools| {
            pools.http1.close_idle();
            pools.long.close_idle();
            pools.http2.close_idle();
        });
    }

    /// Sends a request to the worker at this address, by the version of HTTP that it has, and waits for the response's
    /// head.
    ///
    /// # Errors
    /// If it cannot be reached, or the connection breaks.
    pub(crate) async fn send(&self, address: &Arc<str>, request: Request<Body>) -> Result<Response<Body>, SendError> {
        let request = match self.in_process.pass(address, request) {
            Ok(answering) => return Ok(answering.await),
            Err(request) => request,
        };
        let pools = self.pools.lock().entry(address.clone()).or_default().clone();
        // A tunnel is long, too, whatever its request is.
        let is_long = request.version() != Version::HTTP_2
            && (request.headers().contains_key(UPGRADE) || request.body().size_hint().exact().is_none_or(|n| n > LONG));
        let connector = if is_long { &self.patient } else { &self.connector };
        let connect = || async {
            let uri = Uri::builder()
                .scheme(self.scheme)
                .authority(&**address)
                .path_and_query("/")
                .build()?;
            connector.clone().oneshot(uri).await
        };
        let sent = match request.version() {
            Version::HTTP_2 => pools.http2.send(request, connect).await,
            _ if is_long => pools.long.send(request, connect).await,
            _ => pools.http1.send(request, connect).await,
        };
        if matches!(sent, Err(SendError::Connect(_))) {
            // It may be gone for good.
            self.pools.lock().remove(address);
        }
        sent.map(|answer| answer.map(Body::new))
    }
}
