//! What a store is reached by, and how long it may take.

use std::time::Duration;

use aws_sdk_s3::types::ServerSideEncryption;

/// A bucket and how to reach it.
#[derive(Clone)]
pub struct StoreConfig {
    /// URL of the server; `None` for AWS.
    pub endpoint: Option<String>,
    /// The bucket.
    pub bucket: String,
    /// All keys begin with this and a `/`; may be empty.
    pub prefix: String,
    /// The region; any name does for a server of one's own.
    pub region: String,
    /// Access key id and secret; `None` for the usual AWS environment (variables, profile, instance role).
    pub credentials: Option<(String, String)>,
    /// Bucket in the path rather than in the host name: needed by most servers but AWS.
    pub force_path_style: bool,
    /// How the server encrypts what it keeps.
    pub encryption: Encryption,
    /// Limits.
    pub timeouts: Timeouts,
}

/// What is asked of the server for each object that is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Whatever the bucket does by itself.
    #[default]
    AsBucket,
    /// With keys of the server's own (SSE-S3).
    Aes256,
    /// With a key of its key service (SSE-KMS): this one, or the bucket's.
    Kms(Option<String>),
}

impl Encryption {
    /// The word for the request.
    pub(super) fn algorithm(&self) -> Option<ServerSideEncryption> {
        match self {
            Self::AsBucket => None,
            Self::Aes256 => Some(ServerSideEncryption::Aes256),
            Self::Kms(_) => Some(ServerSideEncryption::AwsKms),
        }
    }

    /// The key for the request.
    pub(super) fn key(&self) -> Option<String> {
        match self {
            Self::Kms(key) => key.clone(),
            Self::AsBucket | Self::Aes256 => None,
        }
    }
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret stays out of logs.
        f.debug_struct("StoreConfig")
            .field("endpoint", &self.endpoint)
            .field("bucket", &self.bucket)
            .field("prefix", &self.prefix)
            .field("region", &self.region)
            .field("force_path_style", &self.force_path_style)
            .finish_non_exhaustive()
    }
}

/// How long calls may take. A call that moves bytes gets more time, by their number.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// Opening a connection.
    pub connect: Duration,
    /// One attempt of a call, bodies aside.
    pub attempt: Duration,
    /// A call with all its attempts, bodies aside.
    pub operation: Duration,
    /// Attempts of a call.
    pub attempts: u32,
    /// The slowest transfer that is waited for, bytes per second.
    pub slowest_bytes_per_s: u64,
}

impl Default for Timeouts {
    /// A read of a chunk that cannot be had fails within 10 seconds: 9 and the time of its body.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            attempt: Duration::from_millis(2500),
            operation: Duration::from_millis(8000),
            attempts: 4,
            slowest_bytes_per_s: 4 << 20,
        }
    }
}

impl Timeouts {
    fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_millis(bytes.saturating_mul(1000) / self.slowest_bytes_per_s.max(1))
    }

    /// Limit of one attempt that moves `bytes`.
    pub(super) fn attempt(&self, bytes: u64) -> Duration {
        self.attempt + self.transfer(bytes)
    }

    /// Limit of a call that moves `bytes`.
    pub(super) fn operation(&self, bytes: u64) -> Duration {
        self.operation + self.transfer(bytes)
    }
}
