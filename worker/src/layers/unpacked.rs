//! Unpacked layers on this host, by digest. All sandboxes share them read-only. When they exceed their limit, those
//! worth least are evicted, unless something uses them. An evicted layer is fetched again.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rekindle_snapshotter::layer::{FetchLayerError, Unpack, discard, fetch_layer};
use rekindle_snapshotter::{Digest, GreedyDual, Store};
use rekindle_wire::internal::LayerRef;
use tokio::sync::OnceCell;

use crate::host::confined::Confinement;
use crate::host::disk::tree_bytes;

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
}

#[derive(Debug)]
struct Unpacked {
    path: PathBuf,
    bytes: u64,
}

type Cell = Arc<OnceCell<LayerUse>>;

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

/// The unpacked layers of this host.
pub struct Layers {
    store: Store,
    dir: PathBuf,
    unpack: Arc<Unpack>,
    limit_bytes: u64,
    evicted_bytes: AtomicU64,
    here: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    cells: HashMap<String, Cell>,
    worth: GreedyDual<String>,
}

impl Here {
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
        }
    }

    /// Returns a layer's files, fetched once for all callers.
    ///
    /// # Errors
    /// Returns an error when the layer cannot be fetched or does not verify. The next call tries again.
    pub async fn get(&self, layer: &LayerRef) -> Result<LayerUse, FetchLayerError> {
        let cell = Arc::clone(self.here.lock().cells.entry(layer.digest.clone()).or_default());
        let is_new = !cell.initialized();
        let found = cell
            .get_or_try_init(|| async {
                let path = self.dir.join(&layer.digest);
                fetch_layer(&self.store, layer, &path, &self.unpack).await?;
                let bytes = layer.tar_bytes;
                Ok::<_, FetchLayerError>(LayerUse(Arc::new(Unpacked { path, bytes })))
            })
            .await?
            .clone();
        drop(cell);
        self.here.lock().used(&layer.digest, found.0.bytes);
        if is_new {
            self.keep_to_limit();
        }
        Ok(found)
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
                let layer = LayerUse(Arc::new(Unpacked { path, bytes }));
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

    /// Returns how much space they take.
    pub fn usage(&self) -> LayersUse {
        LayersUse {
            bytes: self.here.lock().bytes(),
            limit_bytes: self.limit_bytes,
            evicted_bytes: self.evicted_bytes.load(Ordering::Relaxed),
        }
    }
}
