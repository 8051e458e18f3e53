//! A store that seals what a publish writes.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rekindle_store::{Backend, ObjectInfo, Outcome, Store, StoreError, StoreObserver};
use tokio::sync::mpsc;

use super::file::{Scratch, seal_file};
use super::form::plain_len;
use super::key::SealingKey;
use super::keyring::Keyring;
use super::{may_be_sealed, opening};

/// The store as the publish of an encrypted snapshot sees it: plain. What it writes is sealed with `key`. It reads
/// nothing but objects of that key, and others that are never sealed.
pub(crate) fn sealing(store: &Store, key: &Arc<SealingKey>) -> Store {
    Store::new(SealingStore {
        inner: opening(store, &Keyring::of(key)),
        key: Arc::clone(key),
    })
}

#[derive(Debug)]
struct SealingStore {
    /// Opens what it reads.
    inner: Store,
    key: Arc<SealingKey>,
}

impl SealingStore {
    async fn sealed(&self, name: &str, bytes: Bytes) -> Result<Bytes, StoreError> {
        if !may_be_sealed(name) {
            return Ok(bytes);
        }
        let (key, of) = (Arc::clone(&self.key), name.to_owned());
        let sealed = tokio::task::spawn_blocking(move || key.seal(&of, &bytes)).await;
        let failed = |cause: Box<dyn std::error::Error + Send + Sync>| StoreError::Failed {
            operation: "encrypt",
            key: name.to_owned(),
            place: self.inner.place().to_owned(),
            cause,
        };
        let sealed = sealed.map_err(|e| failed(e.into()))?;
        sealed.map(Bytes::from).map_err(|e| failed(e.into()))
    }

    async fn sealed_file(&self, name: &str, path: &Path) -> Result<Option<Scratch>, StoreError> {
        if !may_be_sealed(name) {
            return Ok(None);
        }
        let (key, of, file) = (Arc::clone(&self.key), name.to_owned(), path.to_owned());
        let sealed = tokio::task::spawn_blocking(move || seal_file(&key, &of, &file)).await;
        let sealed = sealed.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
        sealed
            .map(Some)
            .map_err(|error| error.at(name, self.inner.place(), path))
    }
}

#[async_trait]
impl Backend for SealingStore {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn observed(&self, observer: StoreObserver) -> Store {
        Store::new(Self {
            inner: self.inner.observed(observer),
            key: Arc::clone(&self.key),
        })
    }

    async fn ensure_place(&self) -> Result<(), StoreError> {
        self.inner.ensure_place().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.inner.check().await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        let sealed = self.sealed(key, bytes).await?;
        self.inner.put(key, sealed).await
    }

    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<Outcome, StoreError> {
        let sealed = self.sealed(key, bytes).await?;
        self.inner.put_if_absent(key, sealed).await
    }

    async fn put_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        let sealed = self.sealed_file(key, path).await?;
        self.inner
            .put_file(key, sealed.as_ref().map_or(path, Scratch::path))
            .await
    }

    async fn put_file_if_absent(&self, key: &str, path: &Path) -> Result<Outcome, StoreError> {
        let sealed = self.sealed_file(key, path).await?;
        let path = sealed.as_ref().map_or(path, Scratch::path);
        self.inner.put_file_if_absent(key, path).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.inner.get(key).await
    }

    async fn get_at_most(&self, key: &str, most: u64) -> Result<Bytes, StoreError> {
        self.inner.get_at_most(key, most).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.inner.get_range(key, range).await
    }

    /// With the size of its plain bytes.
    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let mut found = self.inner.head(key).await?;
        if may_be_sealed(key) {
            found.len = plain_len(found.len);
        }
        Ok(found)
    }

    async fn get_to_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        self.inner.get_to_file(key, path).await
    }

    async fn get_pieces(&self, key: &str, pieces: mpsc::Sender<Bytes>) -> Result<(), StoreError> {
        self.inner.get_pieces(key, pieces).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.inner.list(prefix).await
    }

    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.inner.list_folders(prefix).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.inner.delete(key).await
    }

    async fn delete_once(&self, key: &str) -> Result<(), StoreError> {
        self.inner.delete_once(key).await
    }
}
