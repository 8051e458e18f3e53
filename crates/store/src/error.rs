//! Errors of calls to the store.

use std::path::PathBuf;
use std::time::Duration;

use crate::RequestOutcome;

/// A call to the store failed. The message has the key and the place, the source has the cause.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist.
    #[error("object {key} is not in {place}")]
    NotFound {
        /// The full key.
        key: String,
        /// Where it is looked for: `bucket NAME` or `directory PATH`.
        place: String,
    },
    /// The store refused, or was unreachable in all attempts.
    #[error("could not {operation} {key} in {place}")]
    Failed {
        /// The attempted operation.
        operation: &'static str,
        /// The full key.
        key: String,
        /// Where it is looked for: `bucket NAME` or `directory PATH`.
        place: String,
        /// The client's or the operating system's error.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No response within the time limit.
    #[error("could not {operation} {key} in {place} within {after:?}: check that the store answers")]
    Timeout {
        /// The attempted operation.
        operation: &'static str,
        /// The full key.
        key: String,
        /// Where it is looked for: `bucket NAME` or `directory PATH`.
        place: String,
        /// The time limit.
        after: Duration,
    },
    /// The response does not match the request.
    #[error("object {key} in {place} came back wrong: {what}")]
    Answer {
        /// The full key.
        key: String,
        /// Where it is looked for: `bucket NAME` or `directory PATH`.
        place: String,
        /// The mismatch.
        what: String,
    },
    /// The object is larger than its kind may be.
    #[error("object {key} in {place} has {bytes} bytes, more than the {most} that it may have: remove it")]
    TooLarge {
        /// The full key.
        key: String,
        /// Where it is: `bucket NAME` or `directory PATH`.
        place: String,
        /// Its size in bytes.
        bytes: u64,
        /// The largest size.
        most: u64,
    },
    /// The object is encrypted, and cannot be opened.
    #[error("object {key} in {place} is encrypted and cannot be opened")]
    Sealed {
        /// The full key.
        key: String,
        /// Where it is: `bucket NAME` or `directory PATH`.
        place: String,
        /// Which encryption key it needs, or that it was changed.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A local file could not be accessed.
    #[error("could not {operation} {}", path.display())]
    File {
        /// The attempted operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        cause: std::io::Error,
    },
}

impl StoreError {
    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the object cannot be decrypted. Another attempt does not help.
    pub fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed { .. })
    }

    /// The outcome of a request that ends with it.
    pub fn outcome(&self) -> RequestOutcome {
        match self {
            Self::NotFound { .. } => RequestOutcome::NotFound,
            Self::Timeout { .. } => RequestOutcome::Timeout,
            _ => RequestOutcome::Broken,
        }
    }

    /// A failed access to a local file.
    pub fn file(operation: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::File { operation, path, cause }
    }
}
