//! How a store is reached, and how long its calls may take.

use std::time::Duration;

use aws_sdk_s3::types::ServerSideEncryption;

/// A bucket and how to reach it.
#[derive(Clone)]
pub struct StoreConfig {
    /// URL of the server; `None` for AWS.
    pub endpoint: Option<String>,
    /// The bucket.
    pub bucket: String,
    /// Prefix of all keys, followed by a `/`. May be empty.
    pub prefix: String,
    /// The region. For a self-hosted server any name works.
    pub region: String,
    /// Access key id and secret. `None` for the usual AWS environment (variables, profile, instance role).
    pub credentials: Option<(String, String)>,
    /// Whether the bucket goes into the path rather than the host name, which most servers other than AWS need.
    pub force_path_style: bool,
    /// Server-side encryption of the stored objects.
    pub encryption: Encryption,
    /// Limits.
    pub timeouts: Timeouts,
}

/// The encryption requested for each object that is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Encryption {
    /// The bucket's default.
    #[default]
    AsBucket,
    /// With the server's own keys (SSE-S3).
    Aes256,
    /// With a key of the server's key service (SSE-KMS): this one, or the bucket's default.
    Kms(Option<String>),
}

impl Encryption {
    pub(super) fn algorithm(&self) -> Option<ServerSideEncryption> {
        match self {
            Self::AsBucket => None,
            Self::Aes256 => Some(ServerSideEncryption::Aes256),
            Self::Kms(_) => Some(ServerSideEncryption::AwsKms),
        }
    }

    /// The key id for the request.
    pub(super) fn key(&self) -> Option<String> {
        match self {
            Self::Kms(key) => key.clone(),
            Self::AsBucket | Self::Aes256 => None,
        }
    }
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keeps the secret out of logs.
        f.debug_struct("StoreConfig")
            .field("endpoint", &self.endpoint)
            .field("bucket", &self.bucket)
            .field("prefix", &self.prefix)
            .field("region", &self.region)
            .field("force_path_style", &self.force_path_style)
            .finish_non_exhaustive()
    }
}

/// How long calls may take. Calls that move bytes get extra time, depending on the number of bytes.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// Time limit for opening a connection.
    pub connect: Duration,
    /// Time limit of one attempt, bodies excluded.
    pub attempt: Duration,
    /// Time limit of a call with all its attempts, bodies excluded.
    pub operation: Duration,
    /// Maximum attempts per call.
    pub attempts: u32,
    /// The slowest acceptable transfer, in bytes per second.
    pub slowest_bytes_per_s: u64,
}

impl Default for Timeouts {
    /// A failing read of a chunk ends within 10 seconds: 9 plus the time of its body.
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

    /// Time limit of one attempt that moves `bytes`.
    pub(super) fn attempt(&self, bytes: u64) -> Duration {
        self.attempt + self.transfer(bytes)
    }

    /// Time limit of a call that moves `bytes`.
    pub(super) fn operation(&self, bytes: u64) -> Duration {
        self.operation + self.transfer(bytes)
    }
}
