//! The object store. The only module that touches aws-sdk-s3. All other code deals in keys and bytes.
//!
//! Every call ends: each attempt, the retries and the transfer of a body have limits ([`Timeouts`]). One client lives
//! as long as the process and is shared by clones, so that its connections stay open.

mod config;
mod error;
mod list;
mod observer;
mod read;
#[cfg(test)]
mod scripted_tests;
#[cfg(test)]
mod tests;
mod write;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedCredentialsProvider, StalledStreamProtectionConfig,
};

pub use config::{Encryption, StoreConfig, Timeouts};
pub use error::StoreError;
pub use list::ObjectInfo;
use observer::Failure;
pub use observer::{StoreEvent, StoreObserver};
use tracing::Instrument as _;
pub use write::Outcome;

/// A bucket, or the part of one below a prefix. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    observer: Option<StoreObserver>,
}

struct Inner {
    client: Client,
    bucket: String,
    prefix: String,
    encryption: Encryption,
    timeouts: Timeouts,
    /// Whether a request's signature covers the SHA-256 of its body: where it could be altered in transit.
    signs_bodies: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("bucket", &self.inner.bucket)
            .field("prefix", &self.inner.prefix)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A client for `config`. Sends nothing yet, so a wrong address only shows at the first call.
    pub async fn connect(config: StoreConfig) -> Result<Self, StoreError> {
        let StoreConfig {
            endpoint,
            bucket,
            prefix,
            region,
            credentials,
            force_path_style,
            encryption,
            timeouts,
        } = config;
        let signs_bodies = !endpoint.as_deref().is_some_and(stays_on_this_host);
        let mut builder = match credentials {
            Some((id, secret)) => Builder::new()
                .behavior_version(BehaviorVersion::latest())
                .region(Region::new(region))
                .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
                    id, secret, None, None, "rekindle",
                ))),
            None => {
                let environment = aws_config::defaults(BehaviorVersion::latest())
                    .region(Region::new(region))
                    .load()
                    .await;
                Builder::from(&environment)
            }
        };
        if let Some(endpoint) = endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let client = Client::from_conf(
            builder
                .force_path_style(force_path_style)
                .timeout_config(timeouts.for_bytes(0))
                .retry_config(
                    RetryConfig::standard()
                        .with_max_attempts(timeouts.attempts)
                        .with_initial_backoff(Duration::from_millis(50))
                        .with_max_backoff(Duration::from_secs(1)),
                )
                // All stored data is named or listed by its BLAKE3 digest, which is checked end to end. The SDK's CRC32
                // would be redundant, and so would its own detection of stalled bodies, given the transfer limit.
                .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
                .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
                .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
                .build(),
        );
        Ok(Self {
            inner: Arc::new(Inner {
                client,
                bucket,
                prefix,
                encryption,
                timeouts,
                signs_bodies,
            }),
            observer: None,
        })
    }

    /// The same store, which reports its requests to `observer` from now on. Requests of other clones are not reported.
    #[must_use]
    pub fn observed(&self, observer: StoreObserver) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            observer: Some(observer),
        }
    }

    /// Creates the bucket if it does not exist. Needed with a self-hosted server. In AWS the bucket exists.
    pub async fn ensure_bucket(&self) -> Result<(), StoreError> {
        let bucket = &self.inner.bucket;
        let made = self
            .bounded(
                "make bucket",
                "",
                0,
                Box::pin(self.inner.client.create_bucket().bucket(bucket).send()),
            )
            .await?;
        match made {
            Ok(_) => Ok(()),
            Err(error) => {
                let exists = error
                    .as_service_error()
                    .is_some_and(|e| e.is_bucket_already_exists() || e.is_bucket_already_owned_by_you());
                if exists {
                    Ok(())
                } else {
                    Err(self.failed("make bucket", "", error))
                }
            }
        }
    }

    /// Checks that the bucket exists and may be used. Opens a connection if none is open.
    pub async fn check(&self) -> Result<(), StoreError> {
        let call = Box::pin(self.inner.client.head_bucket().bucket(&self.inner.bucket).send());
        let answer = self.bounded("reach", "", 0, call).await?;
        answer.map(drop).map_err(|error| self.failed("reach", "", error))
    }

    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.inner.bucket
    }

    fn full_key(&self, key: &str) -> String {
        format!("{}{key}", self.inner.prefix)
    }

    /// Adds our own final time limit to an SDK operation, which has its own limits too. The SDK's futures have 16 KiB:
    /// callers box them to keep their own futures small.
    async fn bounded<T, E: Failure>(
        &self,
        operation: &'static str,
        key: &str,
        bytes: u64,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, StoreError> {
        let limit = self.inner.timeouts.operation(bytes) + Duration::from_millis(500);
        self.bounded_until(operation, key, Instant::now() + limit, call).await
    }

    /// Like `bounded`, until a deadline. Each call has one span and is reported to the observer.
    async fn bounded_until<T, E: Failure>(
        &self,
        operation: &'static str,
        key: &str,
        deadline: Instant,
        call: impl Future<Output = Result<T, E>>,
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
            Ok(Ok(_)) => "ok",
            Ok(Err(error)) => error.word(),
            Err(_) => "timeout",
        };
        if !matches!(outcome, "ok" | "not_found" | "precondition") {
            span.record("otel.status_code", "ERROR");
        }
        if outcome != "ok" {
            span.record("error.type", outcome);
        }
        self.tell(StoreEvent::Request {
            operation,
            outcome,
            took: started.elapsed(),
        });
        done.map_err(|_| StoreError::Timeout {
            operation,
            key: self.full_key(key),
            bucket: self.inner.bucket.clone(),
            after,
        })
    }

    fn span(&self, operation: &'static str, key: &str) -> tracing::Span {
        tracing::info_span!(
            "s3",
            otel.name = format!("s3 {operation}"),
            otel.kind = "client",
            otel.status_code = tracing::field::Empty,
            rpc.system = "aws-api",
            rpc.service = "S3",
            aws.s3.bucket = self.inner.bucket,
            aws.s3.key = self.full_key(key),
            rekindle.s3.operation = operation,
            rekindle.s3.bytes = tracing::field::Empty,
            error.type = tracing::field::Empty,
        )
    }

    fn tell(&self, event: StoreEvent) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    fn failed<E>(&self, operation: &'static str, key: &str, cause: E) -> StoreError
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        StoreError::Failed {
            operation,
            key: self.full_key(key),
            bucket: self.inner.bucket.clone(),
            cause: Box::new(cause),
        }
    }

    fn not_found(&self, key: &str) -> StoreError {
        StoreError::NotFound {
            key: self.full_key(key),
            bucket: self.inner.bucket.clone(),
        }
    }
}

/// Whether requests to this URL never leave the host because its name is a loopback address.
fn stays_on_this_host(endpoint: &str) -> bool {
    let Ok(url) = endpoint.parse::<http::Uri>() else {
        return false;
    };
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback())
}

/// `bytes=a-b` with b inclusive, as HTTP defines it. `range` must not be empty.
fn http_range(range: &Range<u64>) -> String {
    format!("bytes={}-{}", range.start, range.end - 1)
}

impl Timeouts {
    fn for_bytes(&self, bytes: u64) -> TimeoutConfig {
        TimeoutConfig::builder()
            .connect_timeout(self.connect)
            .operation_attempt_timeout(self.attempt(bytes))
            .operation_timeout(self.operation(bytes))
            .build()
    }
}
