//! The workers, as a gateway reaches them: directly if one is in the same process, otherwise over a connection pool.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response, Uri};
use parking_lot::Mutex;
use rekindle_identity::{Connector, Member, Role, TlsError};
use rekindle_relay::{ConnectionPool, HeadLimits, InProcessRoles, KeepAlive, SendError};
use tower::ServiceExt as _;

use crate::scheduler;

/// All workers. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Workers {
    connector: Connector,
    scheme: &'static str,
    in_process: InProcessRoles,
    pools: Arc<Mutex<HashMap<Arc<str>, ConnectionPool>>>,
}

impl Workers {
    pub(crate) fn new(member: Option<&Member>, in_process: InProcessRoles) -> Result<Self, TlsError> {
        Ok(Self {
            connector: scheduler::connector(member, Role::Worker)?,
            scheme: scheduler::scheme(member),
            in_process,
            pools: Arc::default(),
        })
    }

    /// The scheme of their addresses.
    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Closes connections that were unused for long, above all those to workers that are gone.
    pub(crate) fn sweep(&self) {
        // A connection that is taken right now returns to its pool, which its taker holds, and is closed with it.
        self.pools.lock().retain(|_, pool| pool.sweep());
    }

    /// Closes all unused connections.
    pub(crate) fn close_idle(&self) {
        self.pools.lock().values().for_each(ConnectionPool::close_idle);
    }

    /// Sends a request to the worker at this address and waits for the response's head.
    ///
    /// # Errors
    /// If it cannot be reached, or the connection breaks.
    pub(crate) async fn send(&self, address: &Arc<str>, request: Request<Body>) -> Result<Response<Body>, SendError> {
        let request = match self.in_process.pass(address, request) {
            Ok(answering) => return Ok(answering.await),
            Err(request) => request,
        };
        let pool = {
            let mut pools = self.pools.lock();
            let of_worker = pools.entry(address.clone());
            of_worker
                .or_insert_with(|| ConnectionPool::new(HeadLimits::PLATFORM, KeepAlive::Unlimited))
                .clone()
        };
        let connect = || async {
            let uri = Uri::builder()
                .scheme(self.scheme)
                .authority(&**address)
                .path_and_query("/")
                .build()?;
            self.connector.clone().oneshot(uri).await
        };
        let sent = pool.send(request, connect).await;
        if matches!(sent, Err(SendError::Connect(_))) {
            // It may be gone for good.
            self.pools.lock().remove(address);
        }
        sent.map(|answer| answer.map(Body::new))
    }
}
