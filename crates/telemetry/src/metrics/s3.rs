//! Metrics of requests to the object store, for every role that makes some.

use std::time::Duration;

use super::{Counter, Desc, Family, Histogram, Registry};

const REQUESTS: Desc = Desc::new(
    "rekindle.s3.requests",
    "{request}",
    &["operation", "outcome"],
    "Requests of this role to the object store, the client's own retries within one. `read` is the body that a `get` \
     brings. Outcomes: `ok`, `not_found`, `precondition`, `refused`, `server_error`, `unreachable`, `broken`, \
     `timeout`.",
);
const DURATION: Desc = Desc::new(
    "rekindle.s3.request.duration",
    "s",
    &["operation"],
    "How long they took.",
);
const BYTES: Desc = Desc::new(
    "rekindle.s3.transferred",
    "By",
    &["direction"],
    "Bodies that were `received` and `sent`.",
);

/// Instruments of an object store.
#[derive(Debug, Clone)]
pub struct S3Metrics {
    requests: Family<Counter, 2>,
    duration: Family<Histogram, 1>,
    bytes: Family<Counter, 1>,
}

impl S3Metrics {
    /// Registers the instruments.
    pub fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.family(&REQUESTS),
            duration: registry.family(&DURATION),
            bytes: registry.family(&BYTES),
        }
    }

    /// Records a finished request.
    pub fn request(&self, operation: &str, outcome: &str, took: Duration) {
        self.requests.with([operation, outcome]).inc();
        self.duration.with([operation]).record(took);
    }

    /// Counts received bytes of a body.
    pub fn received(&self, bytes: u64) {
        self.bytes.with(["received"]).add(bytes);
    }

    /// Counts sent bytes of a body.
    pub fn sent(&self, bytes: u64) {
        self.bytes.with(["sent"]).add(bytes);
    }
}
