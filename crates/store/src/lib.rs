//! The object store: what every part of the platform deals in is keys and bytes. Two things implement it: a local
//! directory ([`Directory`]), and S3 (`rekindle-store-s3`). One suite of tests holds both to the same contract
//! (`tests/contract`).
//!
//! Every call ends: each has a limit of time.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test ends at the first surprise"))]

mod directory;
mod error;
mod names;
mod observer;
mod requests;

use std::fmt::Debug;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

pub use directory::{Directory, OpenError};
pub use error::StoreError;
pub use names::key_of;
pub use observer::{RequestOutcome, StoreEvent, StoreObserver};
pub use requests::Requests;

/// Bytes compared at once by [`Store::has_file`].
const COMPARED: u64 = 16 << 20;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key, without the store's prefix.
    pub key: String,
    /// Size in bytes.
    pub len: u64,
    /// Time of the last write by the store's own clock, in milliseconds since the Unix epoch. `None` if the store does
    /// not report it.
    pub modified_unix_ms: Option<i64>,
}

/// Result of a conditional put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The object exists now.
    Created,
    /// Another object has the key. It was left unchanged.
    AlreadyPresent,
}

/// A store. Writes are durable once answered, and visible to every later call, including listings.
#[async_trait]
pub trait Backend: Debug + Send + Sync {
    /// Where the objects are: `bucket NAME` or `directory PATH`.
    fn place(&self) -> &str;

    /// The same store, which reports its requests to `observer`.
    fn observed(&self, observer: StoreObserver) -> Store;

    /// Makes the place of the objects if it does not exist. Needed with a self-hosted server. In AWS the bucket exists.
    async fn ensure_place(&self) -> Result<(), StoreError>;

    /// Checks that the place exists and may be used. Opens a connection if none is open.
    async fn check(&self) -> Result<(), StoreError>;

    /// Writes an object, replacing any existing one.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError>;

    /// Writes an object if its key is free. Exactly one of several writers creates it. A retry after a lost response
    /// may find its own object and return [`Outcome::AlreadyPresent`].
    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<Outcome, StoreError>;

    /// Writes a file as an object. Returns its size. The file must not change meanwhile.
    async fn put_file(&self, key: &str, path: &Path) -> Result<u64, StoreError>;

    /// Like [`Self::put_if_absent`], from a file.
    async fn put_file_if_absent(&self, key: &str, path: &Path) -> Result<Outcome, StoreError>;

    /// The whole object.
    async fn get(&self, key: &str) -> Result<Bytes, StoreError>;

    /// The whole object if it has at most `most` bytes. What a larger one has is not taken into memory.
    async fn get_at_most(&self, key: &str, most: u64) -> Result<Bytes, StoreError>;

    /// All bytes of `range`. An empty range needs no call.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// The object's size, or [`StoreError::NotFound`].
    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError>;

    /// Writes the object into a new file at `path`. On error nothing of it is left. Returns its size.
    async fn get_to_file(&self, key: &str, path: &Path) -> Result<u64, StoreError>;

    /// Sends the object piece by piece as it arrives; after all of it, an empty piece. Ends early, without error, if
    /// nobody receives any more.
    async fn get_pieces(&self, key: &str, pieces: mpsc::Sender<Bytes>) -> Result<(), StoreError>;

    /// All objects whose keys start with `prefix`, by key.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError>;

    /// Names of the folders directly below `prefix`, which ends with `/`. The names have neither `prefix` nor a final
    /// `/`.
    async fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// Deletes an object. A missing object is not an error.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// Deletes an object with exactly one request. Once this returns, no further request is in flight that the store
    /// might execute later. A missing object is not an error.
    async fn delete_once(&self, key: &str) -> Result<(), StoreError>;
}

/// A store of whichever kind. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<dyn Backend>);

impl Store {
    /// A store of this kind.
    pub fn new(store: impl Backend + 'static) -> Self {
        Self(Arc::new(store))
    }

    /// Whether an object has the same bytes as a file.
    pub async fn has_file(&self, key: &str, path: &Path) -> Result<bool, StoreError> {
        let found = tokio::fs::metadata(path).await;
        let len = found.map_err(StoreError::file("look at", path))?.len();
        if self.head(key).await?.len != len {
            return Ok(false);
        }
        let mut offset = 0;
        while offset < len {
            let range = offset..len.min(offset + COMPARED);
            offset = range.end;
            let own = read_range(path.to_owned(), range.clone()).await;
            if self.get_range(key, range).await? != own.map_err(StoreError::file("read", path))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl std::ops::Deref for Store {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// A range of a file.
///
/// # Errors
/// If the file has not all of it.
pub async fn read_range(path: PathBuf, range: Range<u64>) -> std::io::Result<Vec<u8>> {
    let read = move || {
        let size = usize::try_from(range.end - range.start).map_err(std::io::Error::other)?;
        let mut bytes = vec![0; size];
        std::fs::File::open(path)?.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    };
    tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)?
}
