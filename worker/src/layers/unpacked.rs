//! Layers on this host, by digest. All sandboxes share them read-only. When they exceed their limit, those worth least
//! are evicted, unless something uses them. An evicted layer is fetched again. A large image's is mounted before it is
//! here ([`super::lazy`]).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_snapshotter::layer::{FetchLayerError, Unpack, discard, fetch_layer, load_touched};
use rekindle_snapshotter::{Digest, GreedyDual, Store};
use rekindle_wire::SnapshotId;
use rekindle_wire::internal::LayerRef;
use tokio::sync::OnceCell;
use tracing::Instrument as _;

use super::lazy::{LazyLayer, LazyLayers};
use crate::host::confined::Confinement;
use crate::host::disk::tree_bytes;
use crate::host::start_limiter::StartLimiter;

/// How many bytes of a layer are fetched and unpacked in a second, and the minimum duration. Together they are the cost
/// of having one again.
const FETCHED: u64 = 50 << 20;
const FETCH_LEAST: Duration = Duration::from_millis(100);

/// A layer's files, which stay as long as this does.
#[derive(Debug, Clone)]
pub struct LayerUse(Arc<Unpacked>);

impl LayerUse {
    /// Returns the directory of the files.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the pieces of the layer that were read, if they are recorded ([`Layers::get_recorded`]).
    pub(crate) fn touched(&self) -> Option<Vec<u32>> {
        self.0.lazy.as_ref().and_then(LazyLayer::touched)
    }

    fn hurry(&self) {
        if let Some(lazy) = &self.0.lazy {
            lazy.hurry();
        }
    }
}

#[derive(Debug)]
struct Unpacked {
    path: PathBuf,
    bytes: u64,
    /// Its mount, if its files are not all here.
    lazy: Option<LazyLayer>,
}

impl Unpacked {
    fn here(path: PathBuf, bytes: u64) -> LayerUse {
        let lazy = None;
        LayerUse(Arc::new(Self { path, bytes, lazy }))
    }

    fn mounted(lazy: LazyLayer, bytes: u64) -> LayerUse {
        let (path, lazy) = (lazy.path().to_owned(), Some(lazy));
        LayerUse(Arc::new(Self { path, bytes, lazy }))
    }
}

type LayerCell = Arc<OnceCell<LayerUse>>;

/// How much space layers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayersUse {
    /// Bytes on disk.
    pub bytes: u64,
    /// Maximum number of these bytes.
    pub limit_bytes: u64,
    /// Bytes evicted since the worker's start.
    pub evicted_bytes: u64,
}

/// What was fetched of layers that are read as they are touched.
#[derive(Debug, Default, Clone)]
pub(crate) struct LazyUse {
    /// Bytes, by why they were fetched.
    pub(crate) fetched: Vec<(&'static str, u64)>,
    pub(crate) failed: u64,
}

/// The unpacked layers of this host.
pub struct Layers {
    store: Store,
    dir: PathBuf,
    unpack: Arc<Unpack>,
    limit_bytes: u64,
    evicted_bytes: AtomicU64,
    here: Mutex<CachedLayers>,
    /// Mounts large ones before they are here; `None` if the operator or the host does not want that.
    lazy: Option<LazyLayers>,
}

#[derive(Default)]
struct CachedLayers {
    cells: HashMap<String, LayerCell>,
    worth: GreedyDual<String>,
}

impl CachedLayers {
    fn bytes(&self) -> u64 {
        let unpacked = self.cells.values().filter_map(|cell| cell.get());
        unpacked.map(|layer| layer.0.bytes).sum()
    }

    fn used(&mut self, digest: &str, bytes: u64) {
        let fetching = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / FETCHED);
        self.worth.used(digest.to_owned(), FETCH_LEAST + fetching, bytes);
    }

    /// Takes out the layer worth least among those that nobody uses.
    fn take_least(&mut self) -> Option<Arc<Unpacked>> {
        let unused = self.cells.iter().filter(|(_, cell)| {
            // Whoever waits for a layer holds its cell, and whoever uses it holds the cell's content.
            Arc::strong_count(cell) == 1 && cell.get().is_some_and(|layer| Arc::strong_count(&layer.0) == 1)
        });
        let digest = self.worth.least(unused.map(|(digest, _)| digest))?.clone();
        let cell = self.cells.remove(&digest)?;
        self.worth.gone(&digest);
        self.worth.forget(&digest);
        cell.get().map(|layer| Arc::clone(&layer.0))
    }
}

impl Layers {
    /// Creates it with layers below `dir`, unpacked by processes without privileges. All layers together take at most
    /// `limit_bytes`, unless those in use exceed it.
    pub fn new(store: Store, dir: &Path, confinement: Confinement, limit_bytes: u64) -> Self {
        Self {
            unpack: Arc::new(move |packed, into, name| confinement.layer(packed, into, name)),
            store,
            dir: dir.to_owned(),
            limit_bytes,
            evicted_bytes: AtomicU64::new(0),
            here: Mutex::default(),
            lazy: None,
        }
    }

    /// Mounts images' layers of at least `least_bytes` below `mounts` before they are here, where starts can do with
    /// that.
    #[must_use]
    pub(crate) fn lazily(self, least_bytes: u64, mounts: &Path, starts: Arc<StartLimiter>) -> Self {
        let lazy = Some(LazyLayers::new(least_bytes, mounts, &self.dir, starts));
        Self { lazy, ..self }
    }

    /// Returns a layer's files, fetched once for all callers.
    ///
    /// # Errors
    /// Returns an error when the layer cannot be fetched or does not verify. The next call tries again.
    pub async fn get(&self, layer: &LayerRef) -> Result<LayerUse, FetchLayerError> {
        let path = self.dir.join(&layer.digest);
        let fetch = async {
            fetch_layer(&self.store, layer, &path, &self.unpack).await?;
            Ok(Unpacked::here(path.clone(), layer.tar_bytes))
        };
        let (found, _) = self.found(layer, fetch).await?;
        // If it was mounted for a restore, a boot needs most of it.
        found.hurry();
        Ok(found)
    }

    /// Returns the files of an image's layer for a restore of this snapshot, perhaps before they are here. What its
    /// rehearsal read is fetched first.
    ///
    /// # Errors
    /// The same as [`Self::get`].
    pub(crate) async fn get_for_restore(
        self: &Arc<Self>,
        layer: &LayerRef,
        snapshot: &SnapshotId,
    ) -> Result<LayerUse, FetchLayerError> {
        let path = self.dir.join(&layer.digest);
        let Some(lazy) = self.lazy.as_ref().filter(|lazy| lazy.suits(layer)) else {
            return self.get(layer).await;
        };
        let fetch = async {
            if !path.is_dir()
                && let Some(mounted) = self.mount(lazy, layer, Some(snapshot)).await
            {
                return Ok(Unpacked::mounted(mounted, layer.tar_bytes));
            }
            fetch_layer(&self.store, layer, &path, &self.unpack).await?;
            Ok(Unpacked::here(path.clone(), layer.tar_bytes))
        };
        let (found, is_new) = self.found(layer, fetch).await?;
        if is_new && found.0.lazy.is_some() {
            tokio::spawn(Arc::clone(self).complete(layer.clone(), Arc::downgrade(&found.0)));
        }
        Ok(found)
    }

    /// Returns the files of an image's layer as a host has them that has nothing yet, with a record of what is read.
    /// Without one if the layer is small, or this host cannot mount it.
    ///
    /// # Errors
    /// The same as [`Self::get`].
    pub(crate) async fn get_recorded(&self, layer: &LayerRef) -> Result<LayerUse, FetchLayerError> {
        if let Some(lazy) = self.lazy.as_ref().filter(|lazy| lazy.suits(layer))
            && let Some(mounted) = self.mount(lazy, layer, None).await
        {
            return Ok(Unpacked::mounted(mounted, layer.tar_bytes));
        }
        self.get(layer).await
    }

    /// Returns where a layer's files are on this host, if they are.
    pub(crate) fn place(&self, digest: &str) -> PathBuf {
        let here = self.here.lock();
        let found = here.cells.get(digest).and_then(|cell| cell.get());
        found.map_or_else(|| self.dir.join(digest), |layer| layer.path().to_owned())
    }

    /// Mounts a layer, and begins to fetch what the snapshot's rehearsal read. Without a snapshot, what is read is
    /// recorded.
    async fn mount(&self, lazy: &LazyLayers, layer: &LayerRef, snapshot: Option<&SnapshotId>) -> Option<LazyLayer> {
        let span = tracing::info_span!(
            "mount_layer",
            "rekindle.role" = "worker",
            rekindle.layer = %layer.digest,
            rekindle.ahead = tracing::field::Empty,
        );
        let mount = async {
            let recorded = async {
                let (snapshot, digest) = (snapshot?, layer.digest.parse().ok()?);
                let loaded = load_touched(&self.store, snapshot, &digest).await;
                loaded
                    .inspect_err(|error| tracing::warn!(%snapshot, %error, "which files go ahead is not known"))
                    .ok()
            };
            let (opened, recorded) = tokio::join!(lazy.open(&self.store, layer, snapshot.is_none()), recorded);
            match opened {
                Ok(mounted) => {
                    let pieces = recorded.unwrap_or_default();
                    tracing::Span::current().record("rekindle.ahead", pieces.len());
                    mounted.inspect(|mounted| mounted.begin(&pieces))
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(layer = %layer.digest, error, "a layer is fetched whole before it is used");
                    None
                }
            }
        };
        mount.instrument(span).await
    }

    /// Fetches what is missing of a mounted layer, and has later instances use it unpacked.
    async fn complete(self: Arc<Self>, layer: LayerRef, used: Weak<Unpacked>) {
        let Some(lazy) = &self.lazy else { return };
        let hurries = match used.upgrade().as_ref().and_then(|used| used.lazy.as_ref()) {
            Some(mounted) => mounted.until_due().await,
            None => return,
        };
        let path = self.dir.join(&layer.digest);
        let content = || {
            let used = used.upgrade()?;
            Some((used.lazy.as_ref()?.content(), hurries))
        };
        match lazy.complete(content, &layer, &path, &self.unpack).await {
            Ok(true) => {
                tracing::info!(layer = %layer.digest, "a layer that was read as it was touched is all here");
                let cell = Arc::new(OnceCell::new_with(Some(Unpacked::here(path, layer.tar_bytes))));
                self.here.lock().cells.insert(layer.digest.clone(), cell);
                self.keep_to_limit();
            }
            // Nobody uses it any more.
            Ok(false) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(layer = %layer.digest, error, "the rest of a layer stays in the store");
            }
        }
    }

    /// Returns a layer's files, obtained by `fetch` unless they are known, and whether they were new.
    async fn found(
        &self,
        layer: &LayerRef,
        fetch: impl Future<Output = Result<LayerUse, FetchLayerError>>,
    ) -> Result<(LayerUse, bool), FetchLayerError> {
        let cell = Arc::clone(self.here.lock().cells.entry(layer.digest.clone()).or_default());
        let mut is_new = false;
        let fetch = async {
            is_new = true;
            fetch.await
        };
        let found = cell.get_or_try_init(|| fetch).await?.clone();
        drop(cell);
        self.here.lock().used(&layer.digest, found.0.bytes);
        if is_new {
            self.keep_to_limit();
        }
        Ok((found, is_new))
    }

    /// Counts the layers that an earlier worker has left here. Blocks: it looks at every file.
    ///
    /// # Errors
    /// Returns an error when the directory cannot be read.
    pub fn adopt(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let (path, digest) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            // Layers that are being fetched or removed have other names.
            if digest.parse::<Digest>().is_err() || self.here.lock().cells.contains_key(&digest) {
                continue;
            }
            let bytes = tree_bytes(&path);
            let mut here = self.here.lock();
            // It may have been fetched, and even evicted, meanwhile.
            if !here.cells.contains_key(&digest) && path.is_dir() {
                let layer = Unpacked::here(path, bytes);
                here.cells.insert(digest, Arc::new(OnceCell::new_with(Some(layer))));
            }
        }
        self.keep_to_limit();
        Ok(())
    }

    /// Evicts the layers worth least until the others fit, as far as nothing uses them.
    fn keep_to_limit(&self) {
        loop {
            let mut here = self.here.lock();
            if here.bytes() <= self.limit_bytes {
                return;
            }
            let Some(gone) = here.take_least() else { return };
            if gone.lazy.is_some() {
                drop(here);
                self.evicted_bytes.fetch_add(gone.bytes, Ordering::Relaxed);
                tokio::task::spawn_blocking(|| drop(gone));
                continue;
            }
            // The directory is moved out of the way before anybody can ask for it again.
            match discard(&gone.path) {
                Ok(remains) => {
                    drop(here);
                    self.evicted_bytes.fetch_add(gone.bytes, Ordering::Relaxed);
                    tracing::info!(layer = %gone.path.display(), bytes = gone.bytes, "a layer that nothing used went");
                    tokio::task::spawn_blocking(|| drop(remains));
                }
                Err(error) => {
                    // It is not counted any more: the next worker finds it again.
                    tracing::warn!(layer = %gone.path.display(), error = &error as &dyn std::error::Error, "a layer \
                        that nothing uses cannot be removed");
                }
            }
        }
    }

    /// Unmounts what is mounted, at the worker's end. Blocks.
    pub(crate) fn unmount(&self) {
        if let Some(lazy) = &self.lazy {
            lazy.unmount();
        }
    }

    /// Returns what was fetched of those that are read as they are touched.
    pub(crate) fn lazy_usage(&self) -> LazyUse {
        let counts = self.lazy.as_ref().map(LazyLayers::counts);
        counts.map_or_else(LazyUse::default, |counts| LazyUse {
            fetched: counts.fetched(),
            failed: counts.failed(),
        })
    }

    /// Returns how much space they take.
    pub fn usage(&self) -> LayersUse {
        LayersUse {
            bytes: self.here.lock().bytes(),
            limit_bytes: self.limit_bytes,
            evicted_bytes: self.evicted_bytes.load(Ordering::Relaxed),
        }
    }
}
