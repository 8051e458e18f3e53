//! A service that keeps the key of master keys, and never shows it. What it wraps can lie beside what the master key
//! seals: it says nothing without the service.

use std::error::Error;
use std::fmt;

use async_trait::async_trait;

use super::MasterKey;

/// Why a key service does not do what it is asked.
pub type KeyServiceError = Box<dyn Error + Send + Sync>;

/// A master key as a service wrapped it.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// Name of the service's key.
    pub by: String,
    /// The cluster that it is wrapped for, which the service checks.
    pub cluster: String,
    /// What the service wants back to unwrap it.
    pub bytes: Vec<u8>,
}

/// A key service. Each call ends within a bounded time.
#[async_trait]
pub trait KeyService: Send + Sync {
    /// The cluster that it wraps keys for.
    fn cluster(&self) -> &str;

    /// Full name of the key that wraps from now on, once it is known to be usable.
    async fn key(&self) -> Result<String, KeyServiceError>;

    /// Whether two names are names of one key.
    fn same(&self, one: &str, other: &str) -> bool {
        one == other
    }

    /// A new master key, wrapped.
    async fn generate(&self) -> Result<(MasterKey, WrappedKey), KeyServiceError>;

    /// Wraps a master key.
    async fn wrap(&self, key: &MasterKey) -> Result<WrappedKey, KeyServiceError>;

    /// Unwraps a master key, with the key that has wrapped it.
    async fn unwrap(&self, wrapped: &WrappedKey) -> Result<MasterKey, KeyServiceError>;
}

impl fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappedKey")
            .field("by", &self.by)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}
