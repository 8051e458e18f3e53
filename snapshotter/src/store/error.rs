//! What can go wrong in a call to the store.

use std::path::PathBuf;
use std::time::Duration;

/// A call to the store failed. Says key and bucket; why is in the source.
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
    /// The server refused, or could not be reached within all retries.
    #[error("could not {operation} {key} in bucket {bucket}")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// The full key.
        key: String,
        /// The bucket.
        bucket: String,
        /// Why.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer within the limit.
    #[error("could not {operation} {key} in bucket {bucket} within {after:?}: check that the store answers")]
    Timeout {
        /// What was tried.
        operation: &'static str,
        /// The full key.
        key: String,
        /// The bucket.
        bucket: String,
        /// The limit.
        after: Duration,
    },
    /// The answer does not fit the question.
    #[error("object {key} in bucket {bucket} came back wrong: {what}")]
    Answer {
        /// The full key.
        key: String,
        /// The bucket.
        bucket: String,
        /// What does not fit.
        what: String,
    },
    /// A local file.
    #[error("could not {operation} {}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
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
