//! The object store in S3. The only crate that touches aws-sdk-s3. All other code deals in keys and bytes.
//!
//! Every call ends: each attempt, the retries and the transfer of a body have limits ([`Timeouts`]). One client lives
//! as long as the process and is shared by clones, so that its connections stay open.

mod config;
mod list;
mod outcome;
mod read;
mod write;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedCredentialsProvider, StalledStreamProtectionConfig,
};
use bytes::Bytes;
use rekindle_store::{Backend, ObjectInfo, Outcome, Requests, Store, StoreError, StoreObserver};
use tokio::sync::mpsc;

pub use config::{Encryption, StoreConfig, Timeouts};
use outcome::Failure;

/// A bucket, or the part of one below a prefix.
#[derive(Clone)]
struct S3Store {
    inner: Arc<Inner>,
    requests: Requests,
}

struct Inner {
    client: Client,
    bucket: String,
    encryption: Encryption,
    timeouts: Timeouts,
    /// Whether a request's signature covers the SHA-256 of its body: where it could be altered in transit.
    signs_bodies: bool,
}

impl std::fmt::Debug for S3Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("S3Store").field(&self.requests).finish()
    }
}

/// A client for `config`. Sends nothing yet, so a wrong address only shows at the first call.
pub async fn connect(config: StoreConfig) -> Store {
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
    Store::new(S3Store {
        requests: Requests::in_bucket(bucket.clone(), prefix),
        inner: Arc::new(Inner {
            client,
            bucket,
            encryption,
            timeouts,
            signs_bodies,
        }),
    })
}

impl S3Store {
    async fn ensure_bucket(&self) -> Result<(), StoreError> {
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

    fn full_key(&self, key: &str) -> String {
        self.requests.full_key(key)
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

    async fn bounded_until<T, E: Failure>(
        &self,
        operation: &'static str,
        key: &str,
        deadline: Instant,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, StoreError> {
        self.requests
            .bounded_until(operation, key, deadline, call, E::outcome)
            .await
    }

    fn failed<E>(&self, operation: &'static str, key: &str, cause: E) -> StoreError
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        self.requests.failed(operation, key, cause)
    }

    fn not_found(&self, key: &str) -> StoreError {
        self.requests.not_found(key)
    }
}

#[async_trait]
impl Backend for S3Store {
    fn place(&self) -> &str {
        self.requests.place()
    }

    fn observed(&self, observer: StoreObserver) -> Store {
        Store::new(Self {
            inner: Arc::clone(&self.inner),
            requests: self.requests.observed(observer),
        })
    }

    async fn ensure_place(&self) -> Result<(), StoreError> {
        self.ensure_bucket().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        let call = Box::pin(self.inner.client.head_bucket().bucket(&self.inner.bucket).send());
        let answer = self.bounded("reach", "", 0, call).await?;
        answer.map(drop).map_err(|error| self.failed("reach", "", error))
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        Self::put(self, key, bytes).await
    }

    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<Outcome, StoreError> {
        Self::put_if_absent(self, key, bytes).await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        Self::put_file(self, key, path).await
    }

    async fn put_file_if_absent(&self, key: &str, path: &Path) -> Result<Outcome, StoreError> {
        Self::put_file_if_absent(self, key, path).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        Self::get(self, key).await
    }

    async fn get_at_most(&self, key: &str, most: u64) -> Result<Bytes, StoreError> {
        Self::get_at_most(self, key, most).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        Self::get_range(self, key, range).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        Self::head(self, key).await
    }

    async fn get_to_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        Self::get_to_file(self, key, path).await
    }

    async fn get_pieces(&self, key: &str, pieces: mpsc::Sender<Bytes>) -> Result<(), StoreError> {
        Self::get_pieces(self, key, pieces).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        Self::list(self, prefix).await
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        Self::list_folders(self, prefix).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        Self::delete(self, key).await
    }

    async fn delete_once(&self, key: &str) -> Result<(), StoreError> {
        Self::delete_once(self, key).await
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
