//! The scheduler's use of the object store: it keeps uploaded folders there, and removes a deleted function's
//! snapshots.

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use rekindle_snapshotter::collect::{NeedsCache, Rule, forget};
use rekindle_snapshotter::seal::opening;
use rekindle_snapshotter::{Keyring, Outcome, Owner, Store, StoreError, StoreObserver, keys};
use rekindle_wire::api::Collected;
use rekindle_wire::{FunctionId, SnapshotId, VersionNumber};

/// Prefix of all uploaded folders.
const SOURCES: &str = "sources/";
/// Key that says which scheduler the store belongs to.
const OWNER: &str = "owner";

/// An operation of the object store failed.
#[derive(Debug, thiserror::Error)]
#[error("the object store could not {doing} {key}")]
pub struct ObjectError {
    /// What was tried.
    pub doing: &'static str,
    /// The key, or the prefix of several.
    pub key: String,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// The store of uploaded folders and snapshots; [`Store`] in every installation.
pub trait ObjectStore: Send + Sync + 'static {
    /// Stores a file under `key`.
    fn put_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Writes an object into a new file.
    fn get_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Whether there is an object under `key`.
    fn has<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool, ObjectError>>;

    /// Removes an object; a missing one is no error.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Removes a snapshot, its manifest first: from then on it does not exist, whatever happens to the rest. Its chunks
    /// stay, since other snapshots may share them. After an error the call may be repeated.
    fn delete_snapshot<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Digest of a snapshot's manifest, in hexadecimal.
    fn manifest_digest<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<String, ObjectError>>;

    /// Ends the deploy of this version, once its outcome is stored. From then on that outcome alone protects what it
    /// relied on.
    fn end_deploy<'a>(
        &'a self,
        function: &'a FunctionId,
        version: VersionNumber,
    ) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Removes the snapshots, chunks and layers that `rule` does not keep; with `dry_run`, only counts them.
    fn collect<'a>(
        &'a self,
        seen: &'a mut NeedsCache,
        rule: &'a dyn Rule,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Collected, ObjectError>>;

    /// Keys of the uploaded folders, and their sizes in bytes.
    fn sources(&self) -> BoxFuture<'_, Result<Vec<(String, u64)>, ObjectError>>;

    /// Claims the store for `id` if it belongs to nobody or `take_over` is set. Returns the owner.
    fn claim<'a>(&'a self, id: &'a str, take_over: bool) -> BoxFuture<'a, Result<String, ObjectError>>;

    /// The same store, which reports each request to `observer`; `None` if it makes none.
    fn observed(&self, observer: StoreObserver) -> Option<Arc<dyn ObjectStore>> {
        drop(observer);
        None
    }

    /// The same store with encrypted snapshots opened by these keys; `None` if it has none.
    fn opening(&self, keys: &Keyring) -> Option<Arc<dyn ObjectStore>> {
        let _ = keys;
        None
    }
}

impl ObjectStore for Store {
    fn put_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let put = (**self).put_file(key, path).await;
            put.map(drop).map_err(failed("store", key))
        })
    }

    fn get_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let got = (**self).get_to_file(key, path).await;
            got.map(drop).map_err(failed("read", key))
        })
    }

    fn has<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool, ObjectError>> {
        Box::pin(async move {
            match self.head(key).await {
                Ok(_) => Ok(true),
                Err(StoreError::NotFound { .. }) => Ok(false),
                Err(e) => Err(failed("look for", key)(e)),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move { (**self).delete(key).await.map_err(failed("delete", key)) })
    }

    fn delete_snapshot<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<(), ObjectError>> {
        let delete = Box::pin(rekindle_snapshotter::delete(self, id));
        Box::pin(async move { delete.await.map_err(failed("delete snapshot", id.as_str())) })
    }

    fn manifest_digest<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<String, ObjectError>> {
        let read = Box::pin(rekindle_snapshotter::manifest_digest(self, id));
        let what = failed("read the manifest of", id.as_str());
        Box::pin(async move { read.await.map(|digest| digest.to_string()).map_err(what) })
    }

    fn end_deploy<'a>(
        &'a self,
        function: &'a FunctionId,
        version: VersionNumber,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let owner = Owner::deploy(function, version);
            let ended = Box::pin(forget(self, &owner)).await;
            ended.map_err(failed("end the deploy noted in", &keys::publishing(owner.as_str())))
        })
    }

    fn collect<'a>(
        &'a self,
        seen: &'a mut NeedsCache,
        rule: &'a dyn Rule,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Collected, ObjectError>> {
        let collected = Box::pin(rekindle_snapshotter::collect::collect(self, seen, rule, dry_run));
        let what = failed("remove what nobody needs from", self.place());
        Box::pin(async move { collected.await.map_err(what) })
    }

    fn sources(&self) -> BoxFuture<'_, Result<Vec<(String, u64)>, ObjectError>> {
        Box::pin(async move {
            let listed = self.list(SOURCES).await.map_err(failed("list", SOURCES))?;
            Ok(listed.into_iter().map(|o| (o.key, o.len)).collect())
        })
    }

    fn observed(&self, observer: StoreObserver) -> Option<Arc<dyn ObjectStore>> {
        Some(Arc::new((**self).observed(observer)))
    }

    fn opening(&self, keys: &Keyring) -> Option<Arc<dyn ObjectStore>> {
        Some(Arc::new(opening(self, keys)))
    }

    fn claim<'a>(&'a self, id: &'a str, take_over: bool) -> BoxFuture<'a, Result<String, ObjectError>> {
        let wrong = |e| failed("say whose it is in", OWNER)(e);
        Box::pin(async move {
            let bytes = bytes::Bytes::copy_from_slice(id.as_bytes());
            if take_over {
                self.put(OWNER, bytes).await.map_err(wrong)?;
                return Ok(id.to_owned());
            }
            match self.put_if_absent(OWNER, bytes).await.map_err(wrong)? {
                Outcome::Created => Ok(id.to_owned()),
                Outcome::AlreadyPresent => {
                    let owner = self.get(OWNER).await.map_err(wrong)?;
                    Ok(String::from_utf8_lossy(&owner).into_owned())
                }
            }
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

/// Key of an uploaded folder, by the digest of its archive.
pub(crate) fn source_key(digest: &blake3::Hash) -> String {
    format!("{SOURCES}{}.tar.gz", digest.to_hex())
}
