//! Observers of requests to the store.

use std::sync::Arc;
use std::time::Duration;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was served.
    Ok,
    /// There is no such object.
    NotFound,
    /// The object is not as the request says it must be.
    Precondition,
    /// The store refused it.
    Refused,
    /// The store failed.
    ServerError,
    /// The store could not be reached.
    Unreachable,
    /// The answer is not one.
    Broken,
    /// It took too long.
    Timeout,
}

impl RequestOutcome {
    /// Its name in metrics and spans.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotFound => "not_found",
            Self::Precondition => "precondition",
            Self::Refused => "refused",
            Self::ServerError => "server_error",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
        }
    }

    /// Whether something is wrong. An object that is missing, or there already, is an answer.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Ok | Self::NotFound | Self::Precondition)
    }
}

/// An event at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    /// A request has ended, including a client's own retries. Reading a body counts as a separate request.
    Request {
        /// `get`, `read` (a body), `put`, `look up`, `list`, `delete`, …
        operation: &'static str,
        /// How it ended.
        outcome: RequestOutcome,
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
