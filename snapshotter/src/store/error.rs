//! Errors of calls to the store.

use std::path::PathBuf;
use std::time::Duration;

/// A call to the store failed. The message has the key and the bucket, the source has the cause.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist.
    #[error("object {key} is not in bucket {bucket}")]
    NotFound {
        /// The full key.
        key: String,
        /// The bucket.
        bucket: String,
    },
    /// The server refused, or was unreachable in all attempts.
    #[error("could not {operation} {key} in bucket {bucket}")]
    Failed {
        /// The attempted operation.
        operation: &'static str,
        /// The full key.
        key: String,
        /// The bucket.
        bucket: String,
        /// The SDK's error.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No response within the time limit.
    #[error("could not {operation} {key} in bucket {bucket} within {after:?}: check that the store answers")]
    Timeout {
        /// The attempted operation.
        operation: &'static str,
        /// The full key.
        key: String,
        /// The bucket.
        bucket: String,
        /// The time limit.
        after: Duration,
    },
    /// The response does not match the request.
    #[error("object {key} in bucket {bucket} came back wrong: {what}")]
    Answer {
        /// The full key.
        key: String,
        /// The bucket.
        bucket: String,
        /// The mismatch.
        what: String,
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

    pub(super) fn file(operation: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::File { operation, path, cause }
    }
}
