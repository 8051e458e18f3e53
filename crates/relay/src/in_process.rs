//! Direct calls between roles in one process: requests to a role in this process go to its service, without a socket.
//!
//! Requests and responses are the same as on a connection, and so is the code on both sides. This saves writing and
//! parsing them twice, and the wake-ups in between. If roles run in separate processes, no service is registered and
//! everything uses connections.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use futures::future::BoxFuture;
use http::{Request, Response};
use parking_lot::RwLock;

/// The service of a role in this process.
pub type InProcessService = Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// The services registered in a process, by the address that each role advertises. Clones share them.
#[derive(Clone, Default)]
pub struct InProcessRoles(Arc<RwLock<HashMap<String, InProcessService>>>);

impl InProcessRoles {
    /// Registers a service at `address`, `host:port`, until the returned value is dropped. Any holder of this registry
    /// may call it: there is no other authentication of the caller.
    pub fn open<F>(&self, address: &str, serve: F) -> InProcessRegistration
    where
        F: Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync + 'static,
    {
        self.0.write().insert(address.to_owned(), Arc::new(serve));
        InProcessRegistration {
            in_process: self.clone(),
            address: address.to_owned(),
        }
    }

    /// The service at `address`, if one is registered.
    pub fn at(&self, address: &str) -> Option<InProcessService> {
        self.0.read().get(address).cloned()
    }

    /// Passes a request to the service at `address`, if one is registered. The service runs where the future is polled.
    ///
    /// # Errors
    /// Returns the request if no service is registered there.
    #[allow(clippy::result_large_err, reason = "a request that stays where it was is no failure")]
    pub fn pass(
        &self,
        address: &str,
        request: Request<Body>,
    ) -> Result<BoxFuture<'static, Response<Body>>, Request<Body>> {
        match self.at(address) {
            Some(service) => Ok(service(request)),
            None => Err(request),
        }
    }
}

impl std::fmt::Debug for InProcessRoles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.read().keys()).finish()
    }
}

/// A registered service. Dropping this removes it. Calls in flight continue.
#[must_use = "the service is unregistered when this is dropped"]
#[derive(Debug)]
pub struct InProcessRegistration {
    in_process: InProcessRoles,
    address: String,
}

impl Drop for InProcessRegistration {
    fn drop(&mut self) {
        self.in_process.0.write().remove(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_passes_while_the_door_is_open() {
        let in_process = InProcessRoles::default();
        let opened = in_process.open("127.0.0.1:1", |request| {
            Box::pin(async move { Response::new(request.into_body()) })
        });
        let request = |text: &'static str| Request::new(Body::from(text));
        assert!(in_process.pass("127.0.0.1:2", request("other")).is_err());
        let answer = in_process.pass("127.0.0.1:1", request("hello")).unwrap().await;
        let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
        assert_eq!(body, "hello");
        drop(opened);
        let back = in_process.pass("127.0.0.1:1", request("late")).err().unwrap();
        assert_eq!(axum::body::to_bytes(back.into_body(), 100).await.unwrap(), "late");
    }
}
