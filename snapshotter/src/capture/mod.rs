//! Capture: a directory CRIU dumped into becomes a snapshot in the store.
//!
//! ```text
//! read directory ─► cut lazy memory into pieces ─► hash ─► which does the store have? ─► compress the rest
//!   ─► pack into chunks ─► put chunks ─► put bundle and extra files ─► put manifest if absent: the snapshot exists
//! ```
//!
//! Nothing refers to what was put before the manifest; if a step fails, the bundle and extra files are removed again
//! and chunks are left for the garbage collection. Memory used is bounded: pieces are read through a mapping of the
//! dump, and at most [`UPLOADS_AT_ONCE`] chunks and a batch for each thread are held.

mod dump_dir;
mod pack;
mod split;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rekindle_wire::api::SnapshotSummary;
use rekindle_wire::internal::LayerRef;
use rekindle_wire::{FunctionName, SnapshotId, VersionNumber};

use crate::bundle::{BundleBuilder, BundleTooLarge};
use crate::codec::{PAGE_BYTES, REGION_BYTES};
use crate::digest::Digest;
use crate::keys;
use crate::manifest::{
    ExtraEntry, ExtraPlace, ImageEntry, Manifest, ManifestError, ProcessEntry, Totals, is_file_name,
};
use crate::pagemap::{PageMap, PageMapError, Payload, Region};
use crate::region_index::RegionIndex;
use crate::store::{Outcome, Store, StoreError};

pub use dump_dir::DumpError;
use dump_dir::{Dump, read_dump};
use pack::{Piece, hash_all, store_new};

/// Chunks on their way to the store at once.
pub const UPLOADS_AT_ONCE: usize = 8;
/// An extra file up to this size travels in the bundle.
const EXTRA_IN_BUNDLE_MAX: u64 = 1 << 20;

/// What a snapshot is of.
#[derive(Debug, Clone)]
pub struct CaptureMeta {
    /// The id it shall have.
    pub id: SnapshotId,
    /// The function.
    pub function: FunctionName,
    /// The version.
    pub version: VersionNumber,
    /// CRIU's version.
    pub criu: String,
    /// The runtime's root filesystem.
    pub rootfs: LayerRef,
    /// The function's own files.
    pub layer: LayerRef,
    /// How long the processes stood still, milliseconds.
    pub frozen_ms: f64,
    /// Further files to keep with it.
    pub extra: Vec<ExtraFile>,
}

/// A file to keep with a snapshot.
#[derive(Debug, Clone)]
pub struct ExtraFile {
    /// Its name in the snapshot: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// Where it is now. It must not change until publishing is over.
    pub path: PathBuf,
}

/// A snapshot that exists.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its id.
    pub id: SnapshotId,
    /// Its sizes, as users see them.
    pub summary: SnapshotSummary,
    /// Its manifest.
    pub manifest: Manifest,
    /// Bytes put into the store for it, all objects together.
    pub new_bytes: u64,
}

/// Why no snapshot was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The directory is not one we can take.
    #[error("could not take the dump in {}", path.display())]
    Dump {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        cause: DumpError,
    },
    /// The store failed.
    #[error("could not store snapshot {id}")]
    Store {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        #[source]
        cause: StoreError,
    },
    /// Another snapshot has the id.
    #[error("snapshot {0} exists already: publish with a fresh id")]
    IdTaken(SnapshotId),
    /// An extra file has a name that is no file name.
    #[error("\"{0}\" is not a usable name for a file of a snapshot: use letters, digits, '.', '_' and '-'")]
    ExtraName(String),
    /// An extra file cannot be read.
    #[error("could not read {}", path.display())]
    Extra {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// Too much memory that cannot be restored lazily.
    #[error("snapshot {id} cannot be stored")]
    TooLarge {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        #[source]
        cause: BundleTooLarge,
    },
    /// A manifest or page map of ours would not be read back. A bug.
    #[error("snapshot {id} would not be readable")]
    PageMap {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        #[source]
        cause: PageMapError,
    },
    /// A manifest of ours would not be read back. A bug.
    #[error("manifest of snapshot {id} would not be readable")]
    Manifest {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        #[source]
        cause: ManifestError,
    },
    /// The process is shutting down.
    #[error("publishing was cut off by a shutdown")]
    Shutdown,
}

/// Publish the dump in `dir` as a snapshot. The processes need not stand still: only the files in `dir` are read, and they
/// must not change. Runs on the runtime's blocking threads where it computes. On an error no snapshot of that id exists.
pub async fn publish(
    store: &Store,
    index: &RegionIndex,
    dir: &Path,
    meta: CaptureMeta,
) -> Result<Published, PublishError> {
    if let Some(bad) = meta.extra.iter().find(|e| !is_file_name(&e.name)) {
        return Err(PublishError::ExtraName(bad.name.clone()));
    }
    let id = meta.id.clone();
    let in_store = |cause| PublishError::Store { id: id.clone(), cause };

    let path = dir.to_owned();
    let dump = on_blocking_thread(move || read_dump(&path).map_err(|cause| PublishError::Dump { path, cause })).await?;
    let dump = Arc::new(dump);

    let pieces: Arc<[Piece]> = dump.pieces().collect();
    let hashes = hash_all(&dump, &pieces).await?;
    let known = index
        .confirm(store, hashes.iter().flatten().copied())
        .await
        .map_err(in_store)?;
    let new = store_new(store, &dump, &pieces, &hashes, &known, &id).await?;
    index.learn(new.payloads.values().copied(), true);

    let mut payloads = known;
    payloads.extend(new.payloads);
    let (maps, mut totals) = page_maps(&dump, &pieces, &hashes, &payloads)
        .map_err(|cause| PublishError::PageMap { id: id.clone(), cause })?;
    totals.shared_bytes = totals.stored_bytes - new.stored_bytes;

    let extra = hash_extra(meta.extra.clone()).await?;
    let parts = {
        let (dump, id) = (dump.clone(), id.clone());
        let bundled = move || bundle(&dump, &maps, extra).map_err(|cause| PublishError::TooLarge { id, cause });
        on_blocking_thread(bundled).await?
    };
    let bundle_bytes = parts.bytes.len() as u64;
    let manifest = Manifest {
        id: id.clone(),
        function: meta.function,
        version: meta.version,
        created_unix_s: unix_seconds(),
        arch: std::env::consts::ARCH.to_owned(),
        kernel: kernel_release(),
        criu: meta.criu,
        page_bytes: PAGE_BYTES as u64,
        region_bytes: REGION_BYTES as u64,
        frozen_us: microseconds(meta.frozen_ms),
        rootfs: meta.rootfs,
        layer: meta.layer,
        bundle_bytes,
        processes: parts.processes,
        images: parts.images,
        extra: parts.extra,
        totals,
        working_set_key: keys::working_set(&id),
    };
    let encoded = encode_checked(&manifest).map_err(|cause| PublishError::Manifest { id: id.clone(), cause })?;

    let written = put_all(store, &meta.extra, &manifest, parts.bytes, &encoded).await;
    if !matches!(written, Ok(Outcome::Created) | Err(_)) {
        // The folder is that snapshot's, not ours to clear; its bundle was not touched.
        return Err(PublishError::IdTaken(id));
    }
    if let Err(cause) = written {
        clear(store, &manifest).await;
        return Err(in_store(cause));
    }
    let objects = manifest.extra.iter().filter_map(|e| match e.place {
        ExtraPlace::Object { bytes, .. } => Some(bytes),
        ExtraPlace::Section(_) => None,
    });
    let new_bytes = new.stored_bytes + bundle_bytes + encoded.len() as u64 + objects.sum::<u64>();
    Ok(Published {
        summary: manifest.summary(),
        id,
        manifest,
        new_bytes,
    })
}

impl Manifest {
    /// The snapshot's sizes, as users see them.
    pub fn summary(&self) -> SnapshotSummary {
        SnapshotSummary {
            id: self.id.clone(),
            memory_bytes: self.totals.memory_bytes,
            zero_bytes: self.totals.zero_bytes,
            stored_bytes: self.totals.stored_bytes,
            shared_bytes: self.totals.shared_bytes,
            frozen_ms: self.frozen_us as f64 / 1000.0,
        }
    }
}

/// The processes' page maps, in the dump's order, and the sizes without what is shared.
fn page_maps(
    dump: &Dump,
    pieces: &[Piece],
    hashes: &[Option<Digest>],
    payloads: &HashMap<Digest, Payload>,
) -> Result<(Vec<PageMap>, Totals), PageMapError> {
    let mut totals = Totals::default();
    let mut regions: Vec<Vec<Region>> = dump.processes.iter().map(|_| Vec::new()).collect();
    for (piece, hash) in pieces.iter().zip(hashes) {
        let region = Region {
            first: piece.cut.first,
            pages: piece.cut.pages,
            // A hash that is neither known nor new cannot be: every one was looked up, and stored if not found.
            payload: hash.and_then(|hash| payloads.get(&hash).copied()),
        };
        debug_assert_eq!(region.payload.is_some(), hash.is_some());
        totals.memory_bytes += region.plain_len() as u64;
        match region.payload {
            None => totals.zero_bytes += region.plain_len() as u64,
            Some(payload) => totals.stored_bytes += u64::from(payload.len),
        }
        regions[piece.process].push(region);
    }
    totals.eager_bytes = dump.processes.iter().map(|p| p.eager_bytes()).sum::<u64>() + dump.other_pages_bytes;
    totals.memory_bytes += totals.eager_bytes;
    let maps = regions.into_iter().map(PageMap::new).collect::<Result<_, _>>()?;
    Ok((maps, totals))
}

struct Parts {
    bytes: Bytes,
    processes: Vec<ProcessEntry>,
    images: Vec<ImageEntry>,
    extra: Vec<ExtraEntry>,
}

/// An extra file, read if it is small.
struct HashedExtra {
    name: String,
    small: Option<Vec<u8>>,
    bytes: u64,
    blake3: Digest,
}

/// The bundle: page maps first, so that they can be had without the rest, then images, then extra files.
fn bundle(dump: &Dump, maps: &[PageMap], extra: Vec<HashedExtra>) -> Result<Parts, BundleTooLarge> {
    let mut builder = BundleBuilder::default();
    let mut processes = Vec::new();
    for (process, map) in dump.processes.iter().zip(maps) {
        processes.push(ProcessEntry {
            pid: process.pid,
            page_map: builder.add(&map.encode())?,
        });
    }
    let mut images = Vec::new();
    for (name, bytes) in &dump.images {
        images.push(ImageEntry {
            name: name.clone(),
            section: builder.add(bytes)?,
        });
    }
    for process in &dump.processes {
        images.push(ImageEntry {
            name: process.pagemap_name(),
            section: builder.add(&process.eager_pagemap)?,
        });
        images.push(ImageEntry {
            name: process.pages_name(),
            section: builder.add(&process.eager_pages())?,
        });
    }
    images.sort_by(|a, b| a.name.cmp(&b.name));
    let mut entries = Vec::new();
    for file in extra {
        let place = match file.small {
            Some(bytes) => ExtraPlace::Section(builder.add(&bytes)?),
            None => ExtraPlace::Object {
                bytes: file.bytes,
                blake3: file.blake3,
            },
        };
        entries.push(ExtraEntry { name: file.name, place });
    }
    Ok(Parts {
        bytes: builder.finish().into(),
        processes,
        images,
        extra: entries,
    })
}

async fn hash_extra(files: Vec<ExtraFile>) -> Result<Vec<HashedExtra>, PublishError> {
    let hash = |file: ExtraFile| -> std::io::Result<HashedExtra> {
        let bytes = std::fs::metadata(&file.path)?.len();
        let small = (bytes <= EXTRA_IN_BUNDLE_MAX)
            .then(|| std::fs::read(&file.path))
            .transpose()?;
        let mut hasher = blake3::Hasher::new();
        if small.is_none() {
            hasher.update_reader(std::fs::File::open(&file.path)?)?;
        }
        Ok(HashedExtra {
            name: file.name,
            small,
            bytes,
            blake3: Digest(*hasher.finalize().as_bytes()),
        })
    };
    on_blocking_thread(move || {
        let hashed = files.into_iter().map(|file| {
            let path = file.path.clone();
            hash(file).map_err(|cause| PublishError::Extra { path, cause })
        });
        hashed.collect()
    })
    .await
}

/// Put everything but the chunks, the manifest last.
async fn put_all(
    store: &Store,
    files: &[ExtraFile],
    manifest: &Manifest,
    bundle: Bytes,
    encoded: &[u8],
) -> Result<Outcome, StoreError> {
    let id = &manifest.id;
    // An id is used once; whoever finds its bundle there must leave it alone.
    if store.put_if_absent(&keys::bundle(id), bundle.clone()).await? == Outcome::AlreadyPresent
        && store.get(&keys::bundle(id)).await? != bundle
    {
        return Ok(Outcome::AlreadyPresent);
    }
    for entry in &manifest.extra {
        let file = files.iter().find(|f| f.name == entry.name);
        if let (ExtraPlace::Object { .. }, Some(file)) = (&entry.place, file) {
            store.put_file(&keys::extra(id, &entry.name), &file.path).await?;
        }
    }
    let key = keys::manifest(id);
    match store.put_if_absent(&key, Bytes::copy_from_slice(encoded)).await? {
        // Ours, if the answer to the first attempt got lost.
        Outcome::AlreadyPresent if store.get(&key).await? == encoded => Ok(Outcome::Created),
        outcome => Ok(outcome),
    }
}

/// Remove what was put for a snapshot that came to nothing: the manifest too, as it may have arrived although the store
/// said nothing.
async fn clear(store: &Store, manifest: &Manifest) {
    let id = &manifest.id;
    let extra = manifest.extra.iter().map(|e| keys::extra(id, &e.name));
    for key in [keys::manifest(id), keys::bundle(id)].into_iter().chain(extra) {
        if let Err(error) = store.delete(&key).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(key, error, "object of a failed snapshot stays in the store");
            return;
        }
    }
}

fn encode_checked(manifest: &Manifest) -> Result<Vec<u8>, ManifestError> {
    let encoded = manifest.encode()?;
    Manifest::parse(&encoded)?;
    Ok(encoded)
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
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

/// Compute where blocking is allowed. A panic goes on in the caller.
async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(PublishError::Shutdown),
    }
}
