//! Layers: archives of files that instances have in common, such as a runtime's root filesystem, named by what is in
//! them: `layers/{BLAKE3 of the tar}.tar.zst`.

mod stream;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use rekindle_wire::internal::LayerRef;
use uuid::Uuid;

use crate::collect::{Publication, PublicationError};
use crate::digest::{Digest, ParseDigestError};
use crate::flights::Flights;
use crate::keys;
use crate::store::{Store, StoreError};

pub use rekindle_confined::layer::{Name, UnpackError};

/// zstd's own default: layers are packed once and unpacked on every host.
const ZSTD_LEVEL: i32 = 3;
/// Times a download that broke off is begun again.
const ATTEMPTS: u32 = 3;
/// Names tried for a layer while collections may be deleting objects of those names.
const NAMES_MAX: usize = 16;
/// What a tar is made of.
const TAR_BLOCK_BYTES: usize = 512;
/// Marks directories and files that are being written.
const UNFINISHED: &str = ".tmp-";

/// Unpacks an archive into an empty directory, and checks it: in a process without rights, as the archive is not
/// trusted before it is read to its end. Blocks.
pub type Unpack = dyn Fn(&mut dyn io::Read, &Path, &Name) -> Result<(), UnpackError> + Send + Sync;

/// Why a layer could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishLayerError {
    /// A file could not be read or written.
    #[error("could not pack {}", path.display())]
    File {
        /// The tar, or the compressed file beside it.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The store failed.
    #[error("could not store layer {digest}")]
    Store {
        /// The layer.
        digest: Digest,
        /// Why.
        #[source]
        cause: StoreError,
    },
    /// A collection may be deleting it.
    #[error("could not protect the layer from collection")]
    Protect(#[from] PublicationError),
}

/// Why a layer is not on this host.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FetchLayerError {
    /// The reference names no digest.
    #[error("layer reference is malformed")]
    Reference(#[source] Arc<ParseDigestError>),
    /// The store does not have it, or failed.
    #[error("could not fetch layer {digest}")]
    Store {
        /// The layer.
        digest: Digest,
        /// Why.
        #[source]
        cause: Arc<StoreError>,
    },
    /// The archive was refused, is corrupt, or could not be written here.
    #[error("could not unpack layer {digest}")]
    Unpack {
        /// The layer.
        digest: Digest,
        /// Why.
        #[source]
        cause: Arc<UnpackError>,
    },
    /// A directory could not be made, renamed or flushed.
    #[error("could not put layer in place at {}", path.display())]
    Place {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        cause: Arc<io::Error>,
    },
    /// The process is shutting down.
    #[error("fetching layer {0} was cut off by a shutdown")]
    Shutdown(Digest),
}

/// Store a tar as a layer, if the store does not have it yet. No collection deletes it before `publication` is over.
///
/// Writes a compressed copy beside the tar meanwhile. Only regular files, directories, symbolic and hard links can be
/// unpacked again ([`fetch_layer`]).
pub async fn publish_layer(
    store: &Store,
    publication: &Publication,
    tar_path: &Path,
) -> Result<LayerRef, PublishLayerError> {
    let tar = tar_path.to_owned();
    let names = blocking_pack(tar_path, move || hash_file(&tar)).await?;
    let mut usable = None;
    for name in names {
        if publication.protect_one(keys::layer(&name.digest)).await? {
            usable = Some(name);
            break;
        }
    }
    let Candidate { digest, tar_bytes } = usable.ok_or(PublicationError::NoName)?;
    let layer = LayerRef {
        digest: digest.to_string(),
        tar_bytes,
    };
    let key = keys::layer(&digest);
    let failed = |cause| PublishLayerError::Store { digest, cause };
    match store.head(&key).await {
        Ok(_) => return Ok(layer),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(failed(error)),
    }
    let packed = Unfinished::beside(tar_path);
    let (tar, zst) = (tar_path.to_owned(), packed.0.clone());
    blocking_pack(tar_path, move || compress(&tar, tar_bytes, &zst)).await?;
    // Where another has put it in the meantime, that one is taken, as above.
    store.put_file_if_absent(&key, &packed.0).await.map_err(failed)?;
    Ok(layer)
}

/// Have the layer's files in `dest_dir`, owned by root, with their modes and times as in the archive.
///
/// If `dest_dir` exists it is taken as complete, as it only ever appears by rename, when everything is in it and was
/// checked. Calls at the same time for one directory share the work; processes may race, the first wins.
pub async fn fetch_layer(
    store: &Store,
    layer: &LayerRef,
    dest_dir: &Path,
    unpack: &Arc<Unpack>,
) -> Result<(), FetchLayerError> {
    static FETCHES: LazyLock<Arc<Flights<PathBuf, Result<(), FetchLayerError>>>> = LazyLock::new(Arc::default);
    let digest: Digest = layer
        .digest
        .parse()
        .map_err(|e| FetchLayerError::Reference(Arc::new(e)))?;
    if dest_dir.is_dir() {
        return Ok(());
    }
    let (store, dest, tar_bytes, unpack) = (store.clone(), dest_dir.to_owned(), layer.tar_bytes, Arc::clone(unpack));
    let work = || async move { Box::pin(fetch(&store, digest, tar_bytes, &dest, &unpack)).await };
    let fetched = FETCHES.join(dest_dir.to_owned(), work).await;
    fetched.unwrap_or(Err(FetchLayerError::Shutdown(digest)))
}

/// Remove what unfinished fetches left in the directory that holds layers; to be called before the first fetch, as
/// fetches under way would lose their files.
pub fn remove_unfinished(layers_dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(layers_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().contains(UNFINISHED) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Takes an unpacked layer out of the way of fetches; dropping what this answers removes its files, which blocks.
///
/// # Errors
/// When it cannot be renamed.
pub fn discard(dest_dir: &Path) -> io::Result<Unfinished> {
    let remains = Unfinished::beside(dest_dir);
    fs::rename(dest_dir, &remains.0)?;
    Ok(remains)
}

async fn fetch(
    store: &Store,
    digest: Digest,
    tar_bytes: u64,
    dest: &Path,
    unpack: &Arc<Unpack>,
) -> Result<(), FetchLayerError> {
    let place = |path: &Path| {
        let path = path.to_owned();
        move |cause| FetchLayerError::Place {
            path,
            cause: Arc::new(cause),
        }
    };
    if dest.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dest.parent() {
        fs::create_dir_all(parent).map_err(place(parent))?;
    }
    let mut attempt = 1;
    let unfinished = loop {
        let unfinished = Unfinished::beside(dest);
        match fetch_into(store, digest, tar_bytes, &unfinished.0, unpack).await {
            Ok(()) => break unfinished,
            Err(FetchLayerError::Store { cause, .. }) if attempt < ATTEMPTS && !cause.is_not_found() => {
                let error = &*cause as &dyn std::error::Error;
                tracing::warn!(layer = %digest, attempt, error, "download broke off, begun again");
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    };
    let dest = dest.to_owned();
    let put = move || put_in_place(&unfinished.0, &dest).map_err(place(&dest));
    tokio::task::spawn_blocking(put)
        .await
        .unwrap_or(Err(FetchLayerError::Shutdown(digest)))
}

async fn fetch_into(
    store: &Store,
    digest: Digest,
    tar_bytes: u64,
    dir: &Path,
    unpack: &Arc<Unpack>,
) -> Result<(), FetchLayerError> {
    let key = keys::layer(&digest);
    let failed = |cause| FetchLayerError::Store {
        digest,
        cause: Arc::new(cause),
    };
    let made = fs::DirBuilder::new().mode(0o755).create(dir);
    made.map_err(|e| FetchLayerError::Place {
        path: dir.to_owned(),
        cause: Arc::new(e),
    })?;
    let (body, bytes) = store.open_stream(&key).await.map_err(failed)?;
    let (pump, mut reader) = stream::bridge(store, &key, body, bytes);
    let (dir, unpack) = (dir.to_owned(), Arc::clone(unpack));
    let name = Name {
        digest: digest.to_string(),
        tar_bytes,
    };
    let unpacked = tokio::task::spawn_blocking(move || unpack(&mut reader, &dir, &name));
    let (pumped, unpacked) = tokio::join!(pump, unpacked);
    // If the body broke off, the unpacking failed as well, for no reason of its own.
    pumped.map_err(failed)?;
    let unpacked = unpacked.map_err(|_| FetchLayerError::Shutdown(digest))?;
    unpacked.map_err(|cause| FetchLayerError::Unpack {
        digest,
        cause: Arc::new(cause),
    })
}

/// Rename, when the files are on disk: after a power cut the directory is complete or absent.
fn put_in_place(unfinished: &Path, dest: &Path) -> io::Result<()> {
    let dir = fs::File::open(unfinished)?;
    nix::unistd::syncfs(&dir)?;
    match fs::rename(unfinished, dest) {
        Ok(()) => Ok(()),
        // Another process was first; its files are the same.
        Err(_) if dest.is_dir() => fs::remove_dir_all(unfinished),
        Err(error) => Err(error),
    }
}

/// A file or directory that is removed unless it was renamed away.
pub struct Unfinished(PathBuf);

impl Unfinished {
    fn beside(path: &Path) -> Self {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
        Self(path.with_file_name(name))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Most often it is not there any more; what cannot be removed is for `remove_unfinished`.
        drop(fs::remove_dir_all(&self.0).or_else(|_| fs::remove_file(&self.0)));
    }
}

/// A name that a layer can have.
struct Candidate {
    digest: Digest,
    tar_bytes: u64,
}

/// The names that a layer of this archive can have, the plain one first: an archive may end in any number of blocks of zeros.
fn hash_file(path: &Path) -> io::Result<Vec<Candidate>> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path)?)?;
    let mut names = Vec::with_capacity(NAMES_MAX);
    for _ in 0..NAMES_MAX {
        names.push(Candidate {
            digest: Digest(*hasher.finalize().as_bytes()),
            tar_bytes: hasher.count(),
        });
        hasher.update(&[0; TAR_BLOCK_BYTES]);
    }
    Ok(names)
}

/// The archive, with zeros after it up to `tar_bytes`.
fn compress(tar: &Path, tar_bytes: u64, zst: &Path) -> io::Result<()> {
    let out = fs::File::create_new(zst)?;
    let mut encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
    let zeros = io::repeat(0);
    io::copy(&mut fs::File::open(tar)?.chain(zeros).take(tar_bytes), &mut encoder)?;
    encoder.finish()?.flush()
}

async fn blocking_pack<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, PublishLayerError> {
    let done = tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(io::Error::other(e)));
    done.map_err(|cause| PublishLayerError::File {
        path: path.to_owned(),
        cause,
    })
}
