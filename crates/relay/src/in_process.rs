//! Doors between roles of one process: requests to a role that lives here go to it as they are, without a socket between.
//!
//! Requests and answers are the same as on a connection, and so is the code on both sides; what is saved is writing and reading them
//! twice, and the wake-ups between. Where the roles are processes of their own, no door is open and all goes over connections.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use futures::future::BoxFuture;
use http::{Request, Response};
use parking_lot::RwLock;

/// What answers behind a door.
pub type InProcessService = Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// The open doors of a process, by the address that each role tells others. Clones share them.
#[derive(Clone, Default)]
pub struct InProcessRoles(Arc<RwLock<HashMap<String, InProcessService>>>);

impl InProcessRoles {
    /// Opens a door at `address`, `host:port`, until what this returns is dropped. Whoever holds the doors may use it: there is no other proof of
    /// who asks.
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

    /// The door at `address`, if one is open.
    pub fn at(&self, address: &str) -> Option<InProcessService> {
        self.0.read().get(address).cloned()
    }

    /// Passes a request through the door at `address`, if one is open. The answer is made where the future is polled.
    ///
    /// # Errors
    /// The request, when there is no such door.
    #[allow(clippy::result_large_err, reason = "a request that stays where it was is no failure")]
    pub fn pass(
        &self,
        address: &str,
        request: Request<Body>,
    ) -> Result<BoxFuture<'static, Response<Body>>, Request<Body>> {
        match self.at(address) {
            Some(door) => Ok(door(request)),
            None => Err(request),
        }
    }
}

impl std::fmt::Debug for InProcessRoles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.read().keys()).finish()
    }
}

/// An open door; closed when dropped. What has passed goes on.
#[must_use = "the door is closed when this is dropped"]
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
