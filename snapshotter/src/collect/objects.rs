//! What the protocol asks of a store, so that it can be run on a model of one, request by request.

use std::ops::Range;

use bytes::Bytes;

use crate::store::{ObjectInfo, Store, StoreError};

/// A store as publishers and collections see it. What one call has written, every later call sees, in listings too, as S3
/// has it since 2020.
pub trait Objects: Clone + Send + Sync + 'static {
    /// All objects whose keys begin with `prefix`, by key.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<ObjectInfo>, StoreError>> + Send;

    /// The whole object.
    fn get(&self, key: &str) -> impl Future<Output = Result<Bytes, StoreError>> + Send;

    /// The bytes of `range`, all of them.
    fn get_range(&self, key: &str, range: Range<u64>) -> impl Future<Output = Result<Bytes, StoreError>> + Send;

    /// Write an object, replacing what was there.
    fn put(&self, key: &str, bytes: Bytes) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Remove an object with one request: after an answer none is on its way any more. No error if there is none.
    fn delete_once(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl Objects for Store {
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        Self::list(self, prefix).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        Self::get(self, key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        Self::get_range(self, key, range).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        Self::put(self, key, bytes).await
    }

    async fn delete_once(&self, key: &str) -> Result<(), StoreError> {
        Self::delete_once(self, key).await
    }
}
