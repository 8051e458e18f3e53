//! Observers of requests to the store.

use std::sync::Arc;
use std::time::Duration;

/// An event at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    /// A request has ended, including a client's own retries. Reading a body counts as a separate request.
    Request {
        /// `get`, `read` (a body), `put`, `look up`, `list`, `delete`, …
        operation: &'static str,
        /// `ok`, `not_found`, `precondition`, `refused`, `server_error`, `unreachable`, `broken` or `timeout`.
        outcome: &'static str,
        /// Duration of the request.
        took: Duration,
    },
    /// Bytes of bodies were received.
    Received(u64),
    /// Bytes of bodies were sent.
    Sent(u64),
}

/// Receives events. It is called on the tasks that wait for the store, so it must not block.
pub type StoreObserver = Arc<dyn Fn(StoreEvent) + Send + Sync>;
