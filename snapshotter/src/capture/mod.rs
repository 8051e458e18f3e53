//! Capture: turns a directory that CRIU dumped into a snapshot in the store.
//!
//! ```text
//! read directory ─► memory, batch by batch: read ─► cut into regions ─► hash ─► which does the store have?
//!   ─► compress the rest ─► pack into chunks ─► put chunks ─► put bundle and extra files
//!   ─► put manifest if absent: the snapshot exists
//! ```
//!
//! Until the manifest is put, nothing refers to the objects put before it. If a step fails, the bundle and the extra
//! files are removed again, and chunks are left to garbage collection. Memory use does not grow with the dump, except
//! for the bundle and about 200 bytes per region. Some batches and at most [`UPLOADS_AT_ONCE`] chunks are held, about
//! 150 MiB. With [`CaptureOptions::consume`] the dump itself shrinks as it is read.

mod base;
#[cfg(test)]
mod base_tests;
mod commit;
mod cut;
mod dump_dir;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod mode_tests;
mod pack;
mod parts;
mod read;
mod split;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_store::{Outcome, Store, StoreError};
use rekindle_wire::SnapshotId;
use rekindle_wire::api::SnapshotSummary;
use rekindle_wire::clock::unix_s;

use crate::bundle::BundleTooLarge;
use crate::codec::{Codec, PAGE_BYTES};
use crate::collect::{Owner, Publication, PublicationError};
use crate::digest::Digest;
use crate::keys;
use crate::manifest::{ExtraPlace, Manifest, ManifestError, Origin, Totals, is_file_name};
use crate::pagemap::{PageMap, PageMapError, Region};
use crate::region_index::RegionIndex;
use crate::seal::{SealingKey, sealing};

pub use base::BaseMemory;
use commit::{clear, put_manifest, put_parts};
pub use dump_dir::DumpError;
use dump_dir::{Dump, read_dump};
use pack::{Destination, StoredMemory, store_memory};
use parts::{bundle, hash_extra};

/// Maximum number of concurrent chunk uploads.
pub const UPLOADS_AT_ONCE: usize = 8;

/// How memory is captured.
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// How memory is cut and compressed.
    pub codec: Codec,
    /// Number of threads that compute at once.
    pub threads: usize,
    /// Whether pages are removed from the dump as they are read, so that they are not in memory twice. The dump cannot
    /// be used again.
    pub consume: bool,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            codec: Codec::default(),
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            consume: false,
        }
    }
}

/// What a snapshot is taken of.
#[derive(Debug, Clone)]
pub struct CaptureMeta {
    /// The snapshot's id.
    pub id: SnapshotId,
    /// What it is taken of.
    pub origin: Origin,
    /// CRIU's version.
    pub criu: String,
    /// How long the processes were frozen, in milliseconds.
    pub frozen_ms: f64,
    /// Further files to keep with the snapshot.
    pub extra: Vec<ExtraFile>,
    /// The memory that the processes started from, if it is known. Regions that changed little are stored as
    /// differences to it.
    pub base: Option<BaseMemory>,
    /// The key that everything stored is encrypted with, if it is.
    pub seal: Option<Arc<SealingKey>>,
    /// How the memory is captured.
    pub options: CaptureOptions,
}

/// A file to keep with a snapshot.
#[derive(Debug, Clone)]
pub struct ExtraFile {
    /// Its name in the snapshot: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// Its current path. The file must not change until publishing ends.
    pub path: PathBuf,
}

/// A published snapshot.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its id.
    pub id: SnapshotId,
    /// Its sizes, as shown to users.
    pub summary: SnapshotSummary,
    /// Its manifest.
    pub manifest: Manifest,
    /// BLAKE3 of the manifest as stored.
    pub digest: Digest,
    /// Bytes stored for it, over all objects.
    pub new_bytes: u64,
}

/// Why no snapshot was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The directory cannot be used as a dump.
    #[error("could not take the dump in {}", path.display())]
    Dump {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: DumpError,
    },
    /// The store failed.
    #[error("could not store snapshot {id}")]
    Store {
        /// The snapshot.
        id: SnapshotId,
        /// The store's error.
        #[source]
        cause: StoreError,
    },
    /// A collection may be deleting chunks that the snapshot needs.
    #[error("could not protect the chunks of snapshot {id}")]
    Protect {
        /// The snapshot.
        id: SnapshotId,
        /// The error of the publication.
        #[source]
        cause: PublicationError,
    },
    /// Another snapshot has the id.
    #[error("snapshot {0} exists already: publish with a fresh id")]
    IdTaken(SnapshotId),
    /// The name of an extra file is not a valid file name.
    #[error("\"{0}\" is not a usable name for a file of a snapshot: use letters, digits, '.', '_' and '-'")]
    ExtraName(String),
    /// An extra file cannot be read.
    #[error("could not read {}", path.display())]
    Extra {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        cause: std::io::Error,
    },
    /// Too much memory that cannot be restored lazily.
    #[error("snapshot {id} cannot be stored")]
    TooLarge {
        /// The snapshot.
        id: SnapshotId,
        /// The limit that was exceeded.
        #[source]
        cause: BundleTooLarge,
    },
    /// A page map of ours would not parse. A bug.
    #[error("snapshot {id} would not be readable")]
    PageMap {
        /// The snapshot.
        id: SnapshotId,
        /// The parser's error.
        #[source]
        cause: Box<PageMapError>,
    },
    /// A manifest of ours would not parse. A bug.
    #[error("manifest of snapshot {id} would not be readable")]
    Manifest {
        /// The snapshot.
        id: SnapshotId,
        /// The parser's error.
        #[source]
        cause: ManifestError,
    },
    /// The process is shutting down.
    #[error("publishing was cut off by a shutdown")]
    Shutdown,
}

impl PublishError {
    fn dump(path: &Path, cause: DumpError) -> Self {
        let path = path.to_owned();
        Self::Dump { path, cause }
    }
}

/// Publishes the dump in `dir` as a snapshot. The processes need not be frozen: only the files in `dir` are read, and
/// these must not change. Computes on the runtime's blocking threads. On error no snapshot of that id exists.
pub async fn publish(
    store: &Store,
    index: &RegionIndex,
    dir: &Path,
    meta: CaptureMeta,
) -> Result<Published, PublishError> {
    if let Some(bad) = meta.extra.iter().find(|e| !is_file_name(&e.name)) {
        return Err(PublishError::ExtraName(bad.name.clone()));
    }
    let sealed = meta.seal.as_ref().map(|key| sealing(store, key));
    let store = sealed.as_ref().unwrap_or(store);
    let index = &index.of(meta.seal.as_ref().map(|key| key.id()));
    let publication = Publication::new(store.clone(), Owner::snapshot(&meta.id));
    let mut settled = true;
    let published = Box::pin(publish_as(&publication, &mut settled, store, index, dir, meta)).await;
    if settled {
        publication.finish().await;
    }
    published
}

/// Publishes under `publication`. At the end, `settled` is false only if the manifest may still arrive in the store.
/// The objects it refers to must then stay protected until that has become impossible.
async fn publish_as(
    publication: &Publication,
    settled: &mut bool,
    store: &Store,
    index: &RegionIndex,
    dir: &Path,
    meta: CaptureMeta,
) -> Result<Published, PublishError> {
    let id = meta.id.clone();
    let in_store = |cause| PublishError::Store { id: id.clone(), cause };

    let (path, consume) = (dir.to_owned(), meta.options.consume);
    let reading = move || read_dump(&path, consume).map_err(|cause| PublishError::dump(&path, cause));
    let dump = Arc::new(on_blocking_thread(reading).await?);

    let protected = |cause| PublishError::Protect { id: id.clone(), cause };
    let sealed_by = meta.seal.as_ref().map(|key| key.id());
    // A difference to what another key encrypts would tell something of both.
    let base = meta.base.as_ref().filter(|base| base.sealed_by() == sealed_by);
    let into = Destination {
        store,
        publication,
        index,
        seal: meta.seal.as_deref(),
    };
    let stored = Box::pin(store_memory(into, &dump, base, &meta.options, &id)).await?;
    // A difference is useless without its base, so only the other regions are remembered.
    let plain = stored.new.iter().filter(|new| !stored.bases.contains_key(&new.hash));
    index.learn(plain.copied());
    let new_chunk_bytes = stored.new_bytes;
    let stored_on = base.filter(|_| !stored.bases.is_empty()).map(|base| base.id().clone());
    let made = page_maps(&dump, stored, meta.options.codec);
    let (maps, totals) = made.map_err(|cause| PublishError::PageMap {
        id: id.clone(),
        cause: Box::new(cause),
    })?;

    let extra = hash_extra(meta.extra.clone()).await?;
    let parts = {
        let (dump, id) = (dump.clone(), id.clone());
        on_blocking_thread(move || bundle(&id, &dump, &maps, extra)).await?
    };
    let bundle_bytes = parts.bytes.len() as u64;
    let manifest = Manifest {
        id: id.clone(),
        origin: meta.origin,
        base: stored_on,
        sealed_by,
        created_unix_s: unix_s(),
        arch: std::env::consts::ARCH.to_owned(),
        kernel: kernel_release(),
        criu: meta.criu,
        page_bytes: PAGE_BYTES as u64,
        region_bytes: meta.options.codec.region.bytes() as u64,
        frozen_us: microseconds(meta.frozen_ms),
        bundle_bytes,
        processes: parts.processes,
        images: parts.images,
        extra: parts.extra,
        totals,
        working_set_key: keys::working_set(&id),
    };
    let encoded = encode_checked(&manifest).map_err(|cause| PublishError::Manifest { id: id.clone(), cause })?;

    // From here on the snapshot has its own objects.
    publication.protect(&[]).await.map_err(protected)?;
    let parts_put = put_parts(store, &meta.extra, &manifest, parts.bytes)
        .await
        .map_err(in_store);
    let ready = match parts_put {
        Ok(Outcome::Created) => publication.confirm().await.map_err(protected),
        // The folder belongs to that snapshot, so it is not cleared. Its bundle was not touched.
        Ok(Outcome::AlreadyPresent) => return Err(PublishError::IdTaken(id)),
        Err(error) => Err(error),
    };
    if let Err(error) = ready {
        clear(store, &manifest).await;
        return Err(error);
    }
    *settled = false;
    let written = put_manifest(store, &manifest, &encoded).await;
    *settled = written.is_ok();
    match written {
        Ok(Outcome::Created) => {}
        Ok(Outcome::AlreadyPresent) => return Err(PublishError::IdTaken(id)),
        Err(cause) => {
            clear(store, &manifest).await;
            return Err(in_store(cause));
        }
    }
    let objects = manifest.extra.iter().filter_map(|e| match e.place {
        ExtraPlace::Object { bytes, .. } => Some(bytes),
        ExtraPlace::Section(_) => None,
    });
    let new_bytes = new_chunk_bytes + bundle_bytes + encoded.len() as u64 + objects.sum::<u64>();
    Ok(Published {
        summary: manifest.summary(),
        id,
        manifest,
        digest: Digest::of(&encoded),
        new_bytes,
    })
}

impl Manifest {
    /// The snapshot's sizes, as shown to users.
    pub fn summary(&self) -> SnapshotSummary {
        SnapshotSummary {
            id: self.id.clone(),
            memory_bytes: self.totals.memory_bytes,
            zero_bytes: self.totals.zero_bytes,
            stored_bytes: self.totals.stored_bytes,
            shared_bytes: self.totals.shared_bytes,
            frozen_ms: self.frozen_us as f64 / 1000.0,
            made_with: None,
            randomness: None,
            rehearsal: None,
            refused_warmups: Vec::new(),
        }
    }
}

/// The processes' page maps, in the dump's order, and the totals.
fn page_maps(dump: &Dump, stored: StoredMemory, codec: Codec) -> Result<(Vec<PageMap>, Totals), PageMapError> {
    let mut totals = Totals::default();
    let mut regions: Vec<Vec<Region>> = dump.processes.iter().map(|_| Vec::new()).collect();
    for piece in &stored.pieces {
        let region = Region {
            first: piece.region.first,
            pages: piece.region.pages,
            // Every hash was looked up, and stored if not found, so it is either known or new.
            payload: piece.hash.and_then(|hash| stored.payloads.get(&hash).copied()),
            base: piece.hash.and_then(|hash| stored.base_of(hash, piece.region.first)),
        };
        debug_assert_eq!(region.payload.is_some(), piece.hash.is_some());
        totals.memory_bytes += region.plain_len() as u64;
        match region.payload {
            None => totals.zero_bytes += region.plain_len() as u64,
            Some(_) => totals.stored_bytes += region.stored_bytes(),
        }
        regions[piece.process].push(region);
    }
    totals.shared_bytes = totals.stored_bytes - stored.new_bytes;
    totals.eager_bytes = dump.processes.iter().map(|p| p.eager_bytes()).sum::<u64>() + dump.other_pages_bytes;
    totals.memory_bytes += totals.eager_bytes;
    let maps = regions.into_iter().map(|regions| PageMap::new(codec.region, regions));
    let maps = maps.collect::<Result<_, _>>()?;
    Ok((maps, totals))
}

fn encode_checked(manifest: &Manifest) -> Result<Vec<u8>, ManifestError> {
    let encoded = manifest.encode()?;
    Manifest::parse(&encoded)?;
    Ok(encoded)
}

fn microseconds(ms: f64) -> u64 {
    // A float cast saturates; negative and NaN become 0.
    (ms * 1000.0).round() as u64
}

fn kernel_release() -> String {
    let name = nix::sys::utsname::uname();
    name.map(|n| n.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Runs work on a thread that may block. A panic continues in the caller.
async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(PublishError::Shutdown),
    }
}
