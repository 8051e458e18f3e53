//! A store that opens what it reads, by the key that each object names. For a publish it seals what it writes.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rekindle_store::{Backend, ObjectInfo, Outcome, Store, StoreError, StoreObserver};
use tokio::sync::mpsc;

use super::file::{Scratch, open_file, seal_file};
use super::form::{HEADER, Header, place_of, plain_len, sealed_len};
use super::key::{OpenSealError, SealingKey};
use super::keyring::Keyring;
use super::may_be_sealed;
use crate::keys;

/// The store as whoever holds these keys sees it. Sizes are those of the objects as stored.
pub fn opening(store: &Store, keys: &Keyring) -> Store {
    Store::new(SealedStore {
        inner: store.clone(),
        keys: keys.clone(),
        seals_with: None,
    })
}

/// The store as the publish of an encrypted snapshot sees it: plain. What it writes is sealed with `key`. It reads
/// nothing but objects of that key, and others that are never sealed.
pub(crate) fn sealing(store: &Store, key: &Arc<SealingKey>) -> Store {
    Store::new(SealedStore {
        inner: store.clone(),
        keys: Keyring::of(key),
        seals_with: Some(Arc::clone(key)),
    })
}

#[derive(Debug)]
struct SealedStore {
    inner: Store,
    keys: Keyring,
    /// What is written is sealed with this key. Sizes are those of plain objects then.
    seals_with: Option<Arc<SealingKey>>,
}

impl SealedStore {
    fn not_opened(&self, key: &str, cause: OpenSealError) -> StoreError {
        StoreError::Sealed {
            key: key.to_owned(),
            place: self.inner.place().to_owned(),
            cause: Box::new(cause),
        }
    }

    /// The plain bytes of a whole object. A chunk of an unencrypted snapshot may begin as a sealed object does, since
    /// functions choose what is in it. What does not open is left as it is: its name tells.
    async fn opened(&self, key: &str, bytes: Bytes) -> Result<Bytes, StoreError> {
        let Some(header) = Header::parse(&bytes).filter(|_| may_be_sealed(key)) else {
            return Ok(bytes);
        };
        let Some(with) = self.keys.get(header.key) else {
            return match key.starts_with(keys::CHUNKS) {
                true => Ok(bytes),
                false => Err(self.not_opened(key, OpenSealError::OtherKey(header.key))),
            };
        };
        let name = key.to_owned();
        let opened = tokio::task::spawn_blocking(move || with.open(&name, &bytes)).await;
        // It fails only in a shutdown.
        let opened = opened.unwrap_or(Err(OpenSealError::Changed(header.key)));
        opened.map(Bytes::from).map_err(|cause| self.not_opened(key, cause))
    }

    async fn sealed(&self, name: &str, bytes: Bytes) -> Result<Bytes, StoreError> {
        let Some(key) = self.seals_with.clone().filter(|_| may_be_sealed(name)) else {
            return Ok(bytes);
        };
        let of = name.to_owned();
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
        let Some(key) = self.seals_with.clone().filter(|_| may_be_sealed(name)) else {
            return Ok(None);
        };
        let (of, file) = (name.to_owned(), path.to_owned());
        let sealed = tokio::task::spawn_blocking(move || seal_file(&key, &of, &file)).await;
        let sealed = sealed.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
        sealed
            .map(Some)
            .map_err(|error| error.at(name, self.inner.place(), path))
    }
}

#[async_trait]
impl Backend for SealedStore {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn observed(&self, observer: StoreObserver) -> Store {
        Store::new(Self {
            inner: self.inner.observed(observer),
            keys: self.keys.clone(),
            seals_with: self.seals_with.clone(),
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
        let bytes = self.inner.get(key).await?;
        self.opened(key, bytes).await
    }

    async fn get_at_most(&self, key: &str, most: u64) -> Result<Bytes, StoreError> {
        let most = match may_be_sealed(key) {
            true => sealed_len(most),
            false => most,
        };
        let bytes = self.inner.get_at_most(key, most).await?;
        self.opened(key, bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if self.keys.is_empty() || !key.starts_with(keys::SNAPSHOTS) || range.is_empty() {
            return self.inner.get_range(key, range).await;
        }
        let head = match self.inner.get_range(key, 0..HEADER as u64).await {
            Ok(head) => Header::parse(&head),
            Err(error) if error.is_not_found() => return Err(error),
            // A shorter object has no header, and is not sealed. Whatever else was wrong may have passed.
            Err(error) => match self.inner.head(key).await?.len < HEADER as u64 {
                true => None,
                false => return Err(error),
            },
        };
        let Some(header) = head else {
            return self.inner.get_range(key, range).await;
        };
        let with = self.keys.get(header.key);
        let with = with.ok_or_else(|| self.not_opened(key, OpenSealError::OtherKey(header.key)))?;
        let changed = || self.not_opened(key, OpenSealError::Changed(header.key));
        if range.end > header.len {
            return Err(changed());
        }
        let sealed = self.inner.get_range(key, place_of(&range, header.len)).await?;
        let mut plain = vec![0; usize::try_from(range.end - range.start).map_err(|_| changed())?];
        let opened = with.open_range(key, header, &range, &sealed, &mut plain);
        opened.map_err(|cause| self.not_opened(key, cause))?;
        Ok(plain.into())
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let mut found = self.inner.head(key).await?;
        if self.seals_with.is_some() && may_be_sealed(key) {
            found.len = plain_len(found.len);
        }
        Ok(found)
    }

    async fn get_to_file(&self, key: &str, path: &Path) -> Result<u64, StoreError> {
        let bytes = self.inner.get_to_file(key, path).await?;
        if self.keys.is_empty() || !key.starts_with(keys::SNAPSHOTS) {
            return Ok(bytes);
        }
        let (keyring, name, file) = (self.keys.clone(), key.to_owned(), path.to_owned());
        let opened = tokio::task::spawn_blocking(move || open_file(&keyring, &name, &file)).await;
        match opened.unwrap_or_else(|error| Err(std::io::Error::other(error).into())) {
            Ok(plain) => Ok(plain.unwrap_or(bytes)),
            Err(error) => {
                // Nothing of it may be left.
                drop(std::fs::remove_file(path));
                Err(error.at(key, self.inner.place(), path))
            }
        }
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
