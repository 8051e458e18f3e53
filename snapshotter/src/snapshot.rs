//! A snapshot opened for a restore: its manifest, its page maps, and the image files that CRIU reads.
//!
//! A cold host needs one round trip, because the manifest and the bundle are requested concurrently.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rekindle_criu::images::ImageError;
use rekindle_store::{Store, StoreError};
use rekindle_wire::SnapshotId;
use rekindle_wire::internal::LayerRef;

use crate::bundle::{SectionError, open_section, read_section};
use crate::collect::Objects;
use crate::digest::Digest;
use crate::keys;
use crate::manifest::{ExtraEntry, ExtraPlace, Manifest, ManifestError, Origin, Section};
use crate::pagemap::{PageMap, ParseError};
use crate::seal::{Header, KeyId};

/// A checkpointed process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// Locates its private anonymous memory.
    pub page_map: Arc<PageMap>,
}

/// An open snapshot. Holds the compressed bundle in memory until dropped.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its manifest.
    pub manifest: Manifest,
    /// BLAKE3 of the stored manifest, and so of everything in the snapshot.
    pub digest: Digest,
    /// Processes, by pid.
    pub processes: Vec<Process>,
    bundle: Bytes,
    store: Store,
}

/// Why a snapshot could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No snapshot has this id: it was never published, or it was deleted.
    #[error("snapshot {0} does not exist")]
    NotFound(SnapshotId),
    /// The store failed.
    #[error("could not read snapshot {id}")]
    Store {
        /// The snapshot.
        id: SnapshotId,
        /// The store's error.
        #[source]
        cause: StoreError,
    },
    /// The manifest cannot be used.
    #[error(
        "manifest of snapshot {id} ({key}) is not usable: deploy its function again; `fn snapshot delete --force` \
         removes it"
    )]
    Manifest {
        /// The snapshot.
        id: SnapshotId,
        /// The manifest's key.
        key: String,
        /// What is wrong with it.
        #[source]
        cause: ManifestError,
    },
    /// The snapshot is encrypted, and was read without keys.
    #[error(
        "snapshot {id} is encrypted with snapshot key {key}, which schedulers and workers alone hold: it cannot be \
         read, exported or inspected from outside"
    )]
    Sealed {
        /// The snapshot.
        id: SnapshotId,
        /// Id of its key.
        key: KeyId,
    },
    /// The manifest belongs to another snapshot.
    #[error("object {key} is the manifest of {found}, not of {id}")]
    OtherSnapshot {
        /// The snapshot.
        id: SnapshotId,
        /// The manifest's key.
        key: String,
        /// The id in the manifest.
        found: SnapshotId,
    },
    /// The bundle's size differs from the manifest.
    #[error("bundle of snapshot {id} ({key}) has {found} bytes instead of {expected}")]
    BundleSize {
        /// The snapshot.
        id: SnapshotId,
        /// The bundle's key.
        key: String,
        /// Actual size.
        found: u64,
        /// Size in the manifest.
        expected: u64,
    },
    /// A part of the bundle is corrupt.
    #[error(
        "{part} in the bundle of snapshot {id} ({key}) cannot be read: deploy its function again; \
         `fn snapshot delete --force` removes it"
    )]
    Section {
        /// The snapshot.
        id: SnapshotId,
        /// The bundle's key.
        key: String,
        /// The part's name.
        part: String,
        /// What is wrong with it.
        #[source]
        cause: Box<SectionError>,
    },
    /// A page map does not parse although its digest is right.
    #[error("page map of process {pid} of snapshot {id} is malformed")]
    PageMap {
        /// The snapshot.
        id: SnapshotId,
        /// The process.
        pid: u32,
        /// The parser's error.
        #[source]
        cause: ParseError,
    },
    /// A file could not be written on this host.
    #[error("could not write {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        cause: std::io::Error,
    },
    /// An image does not parse although its digest is right.
    #[error("{name} of snapshot {id} cannot be used")]
    Image {
        /// The snapshot.
        id: SnapshotId,
        /// The image.
        name: String,
        /// The parser's error.
        #[source]
        cause: ImageError,
    },
    /// The requested file is not in the snapshot.
    #[error("snapshot {id} has no file \"{name}\"")]
    NoSuchFile {
        /// The snapshot.
        id: SnapshotId,
        /// The file.
        name: String,
    },
    /// A file stored in its own object is corrupt.
    #[error("object {key} is corrupt: its digest is {found}, not {expected}")]
    Extra {
        /// The object's key.
        key: String,
        /// Digest of the bytes found.
        found: Digest,
        /// Digest in the manifest.
        expected: Digest,
    },
}

impl OpenError {
    /// Whether the snapshot does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// Whether the snapshot is encrypted with a key that is not at hand.
    pub fn is_sealed(&self) -> bool {
        match self {
            Self::Store { cause, .. } => cause.is_sealed(),
            Self::Sealed { .. } => true,
            _ => false,
        }
    }

    /// Whether the store answered and its data is missing or wrong. Retrying later does not help.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Store { cause, .. } => cause.is_not_found() || cause.is_sealed(),
            Self::Write { .. } | Self::NoSuchFile { .. } => false,
            Self::NotFound(_)
            | Self::Sealed { .. }
            | Self::Manifest { .. }
            | Self::OtherSnapshot { .. }
            | Self::BundleSize { .. }
            | Self::Section { .. }
            | Self::PageMap { .. }
            | Self::Image { .. }
            | Self::Extra { .. } => true,
        }
    }
}

impl Snapshot {
    /// Opens a snapshot: reads the manifest and the bundle, then checks and parses the manifest and the page maps.
    pub async fn open(store: &Store, id: &SnapshotId) -> Result<Self, OpenError> {
        let key = keys::bundle(id);
        // Both keys are known, so both are requested concurrently, which saves a round trip. Errors of the manifest
        // come first.
        let (manifest, bundle) = tokio::join!(read_with_digest(store, id), store.get(&key));
        let (manifest, digest) = manifest?;
        let bundle = bundle.map_err(|cause| OpenError::Store { id: id.clone(), cause })?;
        let (found, expected) = (bundle.len() as u64, manifest.bundle_bytes);
        if found != expected {
            return Err(OpenError::BundleSize {
                id: id.clone(),
                key,
                found,
                expected,
            });
        }
        let mut processes = Vec::with_capacity(manifest.processes.len());
        for entry in &manifest.processes {
            let bytes = read_section(&entry.page_map, &bundle).map_err(in_section(id, page_map_of(entry.pid)))?;
            processes.push(Process {
                pid: entry.pid,
                page_map: Arc::new(parse_page_map(id, entry.pid, &bytes)?),
            });
        }
        Ok(Self {
            manifest,
            digest,
            processes,
            bundle,
            store: store.clone(),
        })
    }

    /// The snapshot's id.
    pub fn id(&self) -> &SnapshotId {
        &self.manifest.id
    }

    /// The layers that its processes have open: the root filesystem and the function's own files. Only a function's
    /// snapshot has both.
    pub fn layers(&self) -> Option<(&LayerRef, &LayerRef)> {
        match &self.manifest.origin {
            Origin::Function { rootfs, layer, .. } => Some((rootfs, layer)),
            Origin::Runtime { .. } | Origin::Import { .. } => None,
        }
    }

    /// The process with this pid.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|p| p.pid == pid)
    }

    /// Writes all files that CRIU restores from into `dir`. The directory is created if it is absent, and must not hold
    /// any of the files. Each file is checked before its first byte is written.
    pub async fn write_images(&self, dir: &Path) -> Result<(), OpenError> {
        let (snapshot, dir) = (self.clone(), dir.to_owned());
        let write = move || {
            std::fs::create_dir_all(&dir).map_err(writing(&dir))?;
            for image in &snapshot.manifest.images {
                let bytes = snapshot.section(&image.section, &image.name)?;
                write_new(&dir.join(&image.name), &bytes)?;
            }
            Ok(())
        };
        on_blocking_thread(write).await
    }

    /// All files that CRIU restores from, by name. Each is checked.
    pub async fn images(&self) -> Result<BTreeMap<String, Vec<u8>>, OpenError> {
        let snapshot = self.clone();
        let read = move || {
            let images = snapshot.manifest.images.iter();
            let read = images.map(|image| Ok((image.name.clone(), snapshot.section(&image.section, &image.name)?)));
            read.collect()
        };
        on_blocking_thread(read).await
    }

    /// A process's pagemap image as CRIU wrote it.
    pub fn pagemap_image(&self, pid: u32) -> Result<Vec<u8>, OpenError> {
        let entry = self.manifest.processes.iter().find(|p| p.pid == pid);
        let name = format!("pagemap-{pid}.img");
        match entry {
            Some(entry) => self.section(&entry.pagemap, &name),
            None => Err(OpenError::NoSuchFile {
                id: self.id().clone(),
                name,
            }),
        }
    }

    /// One of the files that CRIU restores from. For process memory, only the eager part.
    pub fn image(&self, name: &str) -> Result<Vec<u8>, OpenError> {
        match self.manifest.images.iter().find(|i| i.name == name) {
            Some(image) => self.section(&image.section, name),
            None => Err(OpenError::NoSuchFile {
                id: self.id().clone(),
                name: name.to_owned(),
            }),
        }
    }

    /// Names of the files added by the worker.
    pub fn extra_files(&self) -> impl Iterator<Item = &str> {
        self.manifest.extra.iter().map(|e| e.name.as_str())
    }

    /// Writes a file added by the worker to `path`, which must not exist. On error no file is left there.
    pub async fn write_extra(&self, name: &str, path: &Path) -> Result<(), OpenError> {
        let Some(ExtraEntry { place, .. }) = self.manifest.extra.iter().find(|e| e.name == name) else {
            return Err(OpenError::NoSuchFile {
                id: self.id().clone(),
                name: name.to_owned(),
            });
        };
        match place.clone() {
            ExtraPlace::Section(section) => {
                let (snapshot, path, name) = (self.clone(), path.to_owned(), name.to_owned());
                on_blocking_thread(move || write_new(&path, &snapshot.section(&section, &name)?)).await
            }
            ExtraPlace::Object { blake3, .. } => {
                let (key, path) = (keys::extra(self.id(), name), path.to_owned());
                let id = self.id().clone();
                self.store
                    .get_to_file(&key, &path)
                    .await
                    .map_err(|cause| OpenError::Store { id, cause })?;
                on_blocking_thread(move || check_file(&path, key, blake3)).await
            }
        }
    }

    fn section(&self, section: &Section, name: &str) -> Result<Vec<u8>, OpenError> {
        read_section(section, &self.bundle).map_err(in_section(self.id(), name.to_owned()))
    }
}

/// A snapshot's manifest, checked.
pub async fn read_manifest<O: Objects>(store: &O, id: &SnapshotId) -> Result<Manifest, OpenError> {
    read_with_digest(store, id).await.map(|(manifest, _)| manifest)
}

/// The digest of a snapshot's manifest as stored.
pub async fn manifest_digest<O: Objects>(store: &O, id: &SnapshotId) -> Result<Digest, OpenError> {
    read_with_digest(store, id).await.map(|(_, digest)| digest)
}

async fn read_with_digest<O: Objects>(store: &O, id: &SnapshotId) -> Result<(Manifest, Digest), OpenError> {
    let key = keys::manifest(id);
    let bytes = store.get(&key).await.map_err(|cause| {
        if cause.is_not_found() {
            OpenError::NotFound(id.clone())
        } else {
            OpenError::Store { id: id.clone(), cause }
        }
    })?;
    if let Some(Header { key, .. }) = Header::parse(&bytes) {
        return Err(OpenError::Sealed { id: id.clone(), key });
    }
    let manifest = Manifest::parse(&bytes).map_err(|cause| OpenError::Manifest {
        id: id.clone(),
        key: key.clone(),
        cause,
    })?;
    if manifest.id == *id {
        Ok((manifest, Digest::of(&bytes)))
    } else {
        Err(OpenError::OtherSnapshot {
            id: id.clone(),
            key,
            found: manifest.id,
        })
    }
}

/// A snapshot's page maps without the rest of its bundle. They are at the front of the bundle.
pub(crate) async fn read_page_maps(store: &Store, id: &SnapshotId) -> Result<Vec<PageMap>, OpenError> {
    page_maps_of(store, &read_manifest(store, id).await?).await
}

/// Like `read_page_maps`, for a manifest that has already been read.
pub(crate) async fn page_maps_of<O: Objects>(store: &O, manifest: &Manifest) -> Result<Vec<PageMap>, OpenError> {
    let id = &manifest.id;
    let mut maps = Vec::with_capacity(manifest.processes.len());
    for entry in &manifest.processes {
        let section = &entry.page_map;
        let range = section.offset..section.offset + section.stored_bytes;
        let stored = store
            .get_range(&keys::bundle(id), range)
            .await
            .map_err(|cause| OpenError::Store { id: id.clone(), cause })?;
        let bytes = open_section(section, &stored).map_err(in_section(id, page_map_of(entry.pid)))?;
        maps.push(parse_page_map(id, entry.pid, &bytes)?);
    }
    Ok(maps)
}

fn page_map_of(pid: u32) -> String {
    format!("page map of process {pid}")
}

fn parse_page_map(id: &SnapshotId, pid: u32, bytes: &[u8]) -> Result<PageMap, OpenError> {
    PageMap::parse(bytes).map_err(|cause| OpenError::PageMap {
        id: id.clone(),
        pid,
        cause,
    })
}

fn in_section(id: &SnapshotId, part: String) -> impl FnOnce(SectionError) -> OpenError {
    let id = id.clone();
    move |cause| OpenError::Section {
        key: keys::bundle(&id),
        id,
        part,
        cause: Box::new(cause),
    }
}

fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |cause| OpenError::Write { path, cause }
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(writing(path))
}

fn check_file(path: &Path, key: String, expected: Digest) -> Result<(), OpenError> {
    let mut hasher = blake3::Hasher::new();
    let file = std::fs::File::open(path).map_err(writing(path))?;
    hasher.update_reader(file).map_err(writing(path))?;
    let found = Digest(*hasher.finalize().as_bytes());
    if found == expected {
        return Ok(());
    }
    // The caller gets the error. A leftover file would only be rejected on the next try, since `path` must not exist.
    drop(std::fs::remove_file(path));
    Err(OpenError::Extra { key, found, expected })
}

async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // Nothing here is expected to panic. If it does, the panic continues in the caller.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => Err(OpenError::Write {
            path: PathBuf::new(),
            cause: std::io::Error::other(error),
        }),
    }
}
