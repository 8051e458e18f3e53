//! What requests to any store have in common: a limit of time, a span, a report to the observer, and errors that name
//! the object.

use std::path::Path;
use std::time::Instant;

use tracing::Instrument as _;

use crate::{RequestOutcome, StoreError, StoreEvent, StoreObserver};

/// Where a store's requests go, and who is told of them.
#[derive(Clone)]
pub struct Requests {
    /// `None` if the objects are not in S3.
    bucket: Option<String>,
    /// Where the objects are, as errors name it: `bucket rekindle`.
    place: String,
    prefix: String,
    observer: Option<StoreObserver>,
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.place, self.prefix)
    }
}

impl Requests {
    /// Requests to a bucket in S3, for keys that all begin with `prefix`.
    pub fn in_bucket(bucket: String, prefix: String) -> Self {
        Self {
            place: format!("bucket {bucket}"),
            bucket: Some(bucket),
            prefix,
            observer: None,
        }
    }

    pub(crate) fn in_directory(path: &Path) -> Self {
        Self {
            bucket: None,
            place: format!("directory {}", path.display()),
            prefix: String::new(),
            observer: None,
        }
    }

    /// The same, with an observer.
    #[must_use]
    pub fn observed(&self, observer: StoreObserver) -> Self {
        Self {
            observer: Some(observer),
            ..self.clone()
        }
    }

    /// Where the objects are.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What all keys begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key with the prefix.
    pub fn full_key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Limits a request. It has one span and is reported to the observer, an error as the outcome that it is.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] at the deadline.
    pub async fn bounded_until<T, E>(
        &self,
        operation: &'static str,
        key: &str,
        deadline: Instant,
        call: impl Future<Output = Result<T, E>>,
        outcome_of: impl Fn(&E) -> RequestOutcome,
    ) -> Result<Result<T, E>, StoreError> {
        let started = Instant::now();
        let after = deadline.saturating_duration_since(started);
        // Calls outside a traced request (filling templates, collecting) are counted, but do not start their own trace.
        let is_traced = !tracing::Span::current().is_none();
        let span = if is_traced {
            self.span(operation, key)
        } else {
            tracing::Span::none()
        };
        let done = tokio::time::timeout(after, call).instrument(span.clone()).await;
        let outcome = match &done {
            Ok(Ok(_)) => RequestOutcome::Ok,
            Ok(Err(error)) => outcome_of(error),
            Err(_) => RequestOutcome::Timeout,
        };
        if outcome.is_failure() {
            span.record("otel.status_code", "ERROR");
        }
        if outcome != RequestOutcome::Ok {
            span.record("error.type", outcome.as_str());
        }
        self.tell(StoreEvent::Request {
            operation,
            outcome,
            took: started.elapsed(),
        });
        done.map_err(|_| StoreError::Timeout {
            operation,
            key: self.full_key(key),
            place: self.place.clone(),
            after,
        })
    }

    fn span(&self, operation: &'static str, key: &str) -> tracing::Span {
        let span = tracing::info_span!(
            "store",
            otel.name = format!("{} {operation}", if self.bucket.is_some() { "s3" } else { "store" }),
            otel.kind = "client",
            otel.status_code = tracing::field::Empty,
            rpc.system = tracing::field::Empty,
            rpc.service = tracing::field::Empty,
            aws.s3.bucket = tracing::field::Empty,
            aws.s3.key = self.full_key(key),
            rekindle.s3.operation = operation,
            rekindle.s3.bytes = tracing::field::Empty,
            error.type = tracing::field::Empty,
        );
        if let Some(bucket) = &self.bucket {
            span.record("rpc.system", "aws-api");
            span.record("rpc.service", "S3");
            span.record("aws.s3.bucket", bucket);
        }
        span
    }

    /// Reports an event.
    pub fn tell(&self, event: StoreEvent) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    /// Reports received bytes of a body. Must be called within the span of the read.
    pub fn received(&self, bytes: u64) {
        tracing::Span::current().record("rekindle.s3.bytes", bytes);
        self.tell(StoreEvent::Received(bytes));
    }

    /// Reports sent bytes of a body. Must be called within the span of the write.
    pub fn sent(&self, bytes: u64) {
        tracing::Span::current().record("rekindle.s3.bytes", bytes);
        self.tell(StoreEvent::Sent(bytes));
    }

    /// The request failed for this cause.
    pub fn failed<E>(&self, operation: &'static str, key: &str, cause: E) -> StoreError
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        StoreError::Failed {
            operation,
            key: self.full_key(key),
            place: self.place.clone(),
            cause: Box::new(cause),
        }
    }

    /// There is no such object.
    pub fn not_found(&self, key: &str) -> StoreError {
        StoreError::NotFound {
            key: self.full_key(key),
            place: self.place.clone(),
        }
    }

    /// The object has more bytes than were asked for at most.
    pub fn too_large(&self, key: &str, bytes: u64, most: u64) -> StoreError {
        StoreError::TooLarge {
            key: self.full_key(key),
            place: self.place.clone(),
            bytes,
            most,
        }
    }

    /// The answer does not match the request.
    pub fn wrong_answer(&self, key: &str, what: String) -> StoreError {
        StoreError::Answer {
            key: self.full_key(key),
            place: self.place.clone(),
            what,
        }
    }
}
