//! The protocol's requirements on a store, so that it can run request by request on a model.

use std::ops::Range;

use bytes::Bytes;

use rekindle_store::{ObjectInfo, Store, StoreError};

/// A store as seen by publishers and collections. Writes are visible to every later call, including listings, as in S3
/// since 2020.
pub trait Objects: Clone + Send + Sync + 'static {
    /// All objects whose keys start with `prefix`, by key.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<ObjectInfo>, StoreError>> + Send;

    /// The whole object.
    fn get(&self, key: &str) -> impl Future<Output = Result<Bytes, StoreError>> + Send;

    /// All bytes of `range`.
    fn get_range(&self, key: &str, range: Range<u64>) -> impl Future<Output = Result<Bytes, StoreError>> + Send;

    /// Writes an object, replacing any existing one.
    fn put(&self, key: &str, bytes: Bytes) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes an object with exactly one request: after its response, no further one is in flight. A missing object is
    /// not an error.
    fn delete_once(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl Objects for Store {
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        (**self).list(prefix).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        (**self).get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        (**self).get_range(key, range).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        (**self).put(key, bytes).await
    }

    async fn delete_once(&self, key: &str) -> Result<(), StoreError> {
        (**self).delete_once(key).await
    }
}
