//! What the scheduler keeps in the object store: uploaded folders. And what it removes there: a deleted function's snapshots.

use std::path::Path;

use futures::future::BoxFuture;
use rekindle_snapshotter::Store;
use rekindle_wire::SnapshotId;

/// The object store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("the object store could not {doing} {key}")]
pub struct ObjectError {
    /// What was tried.
    pub doing: &'static str,
    /// The key, or the prefix of several.
    pub key: String,
    /// Why not.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Where uploaded folders and snapshots lie; [`Store`] in every installation.
pub trait ObjectStore: Send + Sync + 'static {
    /// Stores a file under `key`.
    fn put_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Removes one object; it is no error when it is not there.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Removes everything whose key starts with `prefix`.
    fn delete_all<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(), ObjectError>>;
}

// Boxed twice: the SDK's futures are over 16 KiB, and would be copied into these.
impl ObjectStore for Store {
    fn put_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>> {
        let put = Box::pin(Self::put_file(self, key, path));
        Box::pin(async move { put.await.map(drop).map_err(failed("store", key)) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        let delete = Box::pin(Self::delete(self, key));
        Box::pin(async move { delete.await.map_err(failed("delete", key)) })
    }

    fn delete_all<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        let list = Box::pin(self.list(prefix));
        Box::pin(async move {
            for object in list.await.map_err(failed("list", prefix))? {
                let key = &object.key;
                Box::pin(Self::delete(self, key)).await.map_err(failed("delete", key))?;
            }
            Ok(())
        })
    }
}

fn failed<E>(doing: &'static str, key: &str) -> impl FnOnce(E) -> ObjectError
where
    E: std::error::Error + Send + Sync + 'static,
{
    let key = key.to_owned();
    move |source| ObjectError {
        doing,
        key,
        source: Box::new(source),
    }
}

/// Everything of a snapshot but its chunks, which other snapshots may share.
pub(crate) fn snapshot_prefix(id: &SnapshotId) -> String {
    rekindle_snapshotter::keys::snapshot_prefix(id)
}

/// Where an uploaded folder lies, by the digest of its archive.
pub(crate) fn source_key(digest: &blake3::Hash) -> String {
    format!("sources/{}.tar.gz", digest.to_hex())
}
