//! Layers: archives of files that instances share, such as a runtime's root filesystem. They are named by their
//! contents: `layers/{BLAKE3 of the tar}.tar.zst`.

mod frames;
pub mod index;
mod ranged;
mod stream;
#[cfg(test)]
mod tests;
mod touched;

use std::fs;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use rekindle_store::{Store, StoreError};
use rekindle_wire::internal::LayerRef;
use uuid::Uuid;

use crate::collect::{Publication, PublicationError};
use crate::digest::{Digest, ParseDigestError};
use crate::keys;
use crate::single_flight::SingleFlight;

pub use frames::PIECE;
pub use ranged::{OpenedLayer, RangedLayer};
pub use rekindle_confined::layer::{Name, UnpackError};
pub use touched::{TOUCHED_MAX, load_touched, store_touched};

use rekindle_confined::tree::remove_tree;

/// zstd's own default: layers are packed once and unpacked on every host.
const ZSTD_LEVEL: i32 = 3;
/// Maximum attempts of a download that breaks off.
const ATTEMPTS: u32 = 3;
/// Maximum number of names tried for a layer while collections may be deleting objects with those names.
const NAMES_MAX: usize = 16;
const TAR_BLOCK_BYTES: usize = 512;
/// Marks directories and files that are still being written.
const UNFINISHED: &str = ".tmp-";

/// Unpacks an archive into an empty directory and checks it. Runs in a process without privileges, because the archive
/// is not trusted until it has been read to its end. Blocks.
pub type Unpack = dyn Fn(&mut dyn io::Read, &Path, &Name) -> Result<(), UnpackError> + Send + Sync;

/// Why a layer could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishLayerError {
    /// A file could not be read or written.
    #[error("could not pack {}", path.display())]
    File {
        /// The tar, or its compressed copy.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        cause: io::Error,
    },
    /// The store failed.
    #[error("could not store layer {digest}")]
    Store {
        /// The layer.
        digest: Digest,
        /// The store's error.
        #[source]
        cause: StoreError,
    },
    /// A collection may be deleting the layer.
    #[error("could not protect the layer from collection")]
    Protect(#[from] PublicationError),
}

/// Why a layer is not on this host.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FetchLayerError {
    /// The reference has no valid digest.
    #[error("layer reference is malformed")]
    Reference(#[source] Arc<ParseDigestError>),
    /// The store does not have it, or failed.
    #[error("could not fetch layer {digest}")]
    Store {
        /// The layer.
        digest: Digest,
        /// The store's error.
        #[source]
        cause: Arc<StoreError>,
    },
    /// What the store has under the layer's name is not the layer.
    #[error("layer {digest} is corrupt: {why}")]
    Corrupt {
        /// The layer.
        digest: Digest,
        /// What is wrong.
        why: String,
    },
    /// The archive was rejected, is corrupt, or could not be written to this host.
    #[error("could not unpack layer {digest}")]
    Unpack {
        /// The layer.
        digest: Digest,
        /// The unpacker's error.
        #[source]
        cause: Arc<UnpackError>,
    },
    /// A directory could not be created, renamed or flushed.
    #[error("could not put layer in place at {}", path.display())]
    Place {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        cause: Arc<io::Error>,
    },
    /// The process is shutting down.
    #[error("fetching layer {0} was cut off by a shutdown")]
    Shutdown(Digest),
}

/// Stores a tar as a layer, if the store does not have it yet. No collection deletes it before `publication` ends.
///
/// Writes a temporary compressed copy into the directory `scratch`. Only regular files, directories, symbolic and hard
/// links can be unpacked again ([`fetch_layer`]).
pub async fn publish_layer(
    store: &Store,
    publication: &Publication,
    tar_path: &Path,
    scratch: &Path,
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
    let LayerCandidate { digest, tar_bytes } = usable.ok_or(PublicationError::NoName)?;
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
    let packed = UnfinishedPath::beside(&scratch.join("layer.tar.zst"));
    let (tar, zst) = (tar_path.to_owned(), packed.0.clone());
    blocking_pack(tar_path, move || compress(&tar, tar_bytes, &zst)).await?;
    // If another publisher has stored the layer meanwhile, its object is used, as above.
    store.put_file_if_absent(&key, &packed.0).await.map_err(failed)?;
    Ok(layer)
}

/// Makes the layer's files available in `dest_dir`, owned by root, with modes and times from the archive.
///
/// An existing `dest_dir` counts as complete, because it only appears by rename once everything in it was checked.
/// Concurrent calls for one directory share the work. If several processes race, the first wins.
pub async fn fetch_layer(
    store: &Store,
    layer: &LayerRef,
    dest_dir: &Path,
    unpack: &Arc<Unpack>,
) -> Result<(), FetchLayerError> {
    static FETCHES: LazyLock<Arc<SingleFlight<PathBuf, Result<(), FetchLayerError>>>> = LazyLock::new(Arc::default);
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

/// Removes the leftovers of unfinished fetches from the directory of layers. Must be called before the first fetch,
/// because fetches in flight would lose their files.
pub fn remove_unfinished(layers_dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(layers_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().contains(UNFINISHED) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Moves an unpacked layer out of the way of fetches. Dropping the result removes its files, which blocks.
///
/// # Errors
/// If it cannot be renamed.
pub fn discard(dest_dir: &Path) -> io::Result<UnfinishedPath> {
    let remains = UnfinishedPath::beside(dest_dir);
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
        let unfinished = UnfinishedPath::beside(dest);
        match fetch_into(store, digest, tar_bytes, &unfinished.0, unpack).await {
            Ok(()) => break unfinished,
            Err(FetchLayerError::Store { cause, .. }) if attempt < ATTEMPTS && !cause.is_not_found() => {
                let error = &*cause as &dyn std::error::Error;
                tracing::warn!(layer = %digest, attempt, error, "a download ended early; trying again");
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

/// Makes the layer's files available in `dest_dir`, as [`fetch_layer`] does, from a packed archive on this host.
///
/// # Errors
/// The same as [`fetch_layer`]'s.
pub async fn unpack_layer(
    layer: &LayerRef,
    mut packed: impl io::Read + Send + 'static,
    dest_dir: &Path,
    unpack: &Arc<Unpack>,
) -> Result<(), FetchLayerError> {
    let digest: Digest = layer
        .digest
        .parse()
        .map_err(|e| FetchLayerError::Reference(Arc::new(e)))?;
    let name = Name {
        digest: digest.to_string(),
        tar_bytes: layer.tar_bytes,
    };
    let (dest, unpack) = (dest_dir.to_owned(), Arc::clone(unpack));
    let work = move || {
        let place = |cause| FetchLayerError::Place {
            path: dest.clone(),
            cause: Arc::new(cause),
        };
        let unfinished = UnfinishedPath::beside(&dest);
        fs::DirBuilder::new().mode(0o755).create(&unfinished.0).map_err(place)?;
        unpack(&mut packed, &unfinished.0, &name).map_err(|cause| FetchLayerError::Unpack {
            digest,
            cause: Arc::new(cause),
        })?;
        put_in_place(&unfinished.0, &dest).map_err(place)
    };
    let unpacked = tokio::task::spawn_blocking(work).await;
    unpacked.unwrap_or(Err(FetchLayerError::Shutdown(digest)))
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
    let (pump, mut reader) = stream::bridge(store, &key);
    let (dir, unpack) = (dir.to_owned(), Arc::clone(unpack));
    let name = Name {
        digest: digest.to_string(),
        tar_bytes,
    };
    let unpacked = tokio::task::spawn_blocking(move || unpack(&mut reader, &dir, &name));
    let (pumped, unpacked) = tokio::join!(pump, unpacked);
    // If the body broke off, unpacking failed as a mere consequence.
    pumped.map_err(failed)?;
    let unpacked = unpacked.map_err(|_| FetchLayerError::Shutdown(digest))?;
    unpacked.map_err(|cause| FetchLayerError::Unpack {
        digest,
        cause: Arc::new(cause),
    })
}

/// Renames once the files are on disk: after a power failure the directory is complete or absent.
fn put_in_place(unfinished: &Path, dest: &Path) -> io::Result<()> {
    let dir = fs::File::open(unfinished)?;
    nix::unistd::syncfs(&dir)?;
    match fs::rename(unfinished, dest) {
        Ok(()) => Ok(()),
        // Another process was first. Its files are the same.
        Err(_) if dest.is_dir() => remove_tree(unfinished),
        Err(error) => Err(error),
    }
}

/// A file or directory that is removed on drop unless it was renamed.
pub struct UnfinishedPath(PathBuf);

impl UnfinishedPath {
    fn beside(path: &Path) -> Self {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
        Self(path.with_file_name(name))
    }
}

impl Drop for UnfinishedPath {
    fn drop(&mut self) {
        // It usually no longer exists. Whatever cannot be removed is left to `remove_unfinished`.
        drop(remove_tree(&self.0).or_else(|_| fs::remove_file(&self.0)));
    }
}

/// A possible name of a layer.
struct LayerCandidate {
    digest: Digest,
    tar_bytes: u64,
}

/// The possible names of a layer with this archive, the plain one first. An archive may end in any number of zero
/// blocks.
fn hash_file(path: &Path) -> io::Result<Vec<LayerCandidate>> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path)?)?;
    let mut names = Vec::with_capacity(NAMES_MAX);
    for _ in 0..NAMES_MAX {
        names.push(LayerCandidate {
            digest: Digest(*hasher.finalize().as_bytes()),
            tar_bytes: hasher.count(),
        });
        hasher.update(&[0; TAR_BLOCK_BYTES]);
    }
    Ok(names)
}

/// Compresses the archive, padded with zeros to `tar_bytes`. One with an index can then be read by ranges.
fn compress(tar: &Path, tar_bytes: u64, zst: &Path) -> io::Result<()> {
    let out = fs::File::create_new(zst)?;
    let mut plain = fs::File::open(tar)?;
    let is_indexed = tar_bytes > frames::PIECE && has_index(&plain)?;
    plain.rewind()?;
    let mut padded = plain.chain(io::repeat(0)).take(tar_bytes);
    if is_indexed {
        let mut out = io::BufWriter::with_capacity(1 << 20, out);
        frames::compress(&mut padded, &mut out, ZSTD_LEVEL)?;
        return out.flush();
    }
    let mut encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
    io::copy(&mut padded, &mut encoder)?;
    encoder.finish()?.flush()
}

fn has_index(mut tar: &fs::File) -> io::Result<bool> {
    let length = tar.metadata()?.len();
    let mut end = Vec::new();
    tar.seek(io::SeekFrom::Start(length.saturating_sub(index::BEHIND_MAX as u64)))?;
    tar.read_to_end(&mut end)?;
    Ok(index::locate(&end).is_some())
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
