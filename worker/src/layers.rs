//! Unpacked layers on this host, by digest. Shared read-only by all sandboxes; may be lost at any time but while in use.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_snapshotter::Store;
use rekindle_snapshotter::layer::{FetchLayerError, fetch_layer};
use rekindle_wire::internal::LayerRef;
use tokio::sync::OnceCell;

/// The unpacked layers of this host.
pub struct Layers {
    store: Store,
    dir: PathBuf,
    here: Mutex<HashMap<String, Arc<OnceCell<PathBuf>>>>,
}

impl Layers {
    /// Layers below `dir`.
    pub fn new(store: Store, dir: &Path) -> Self {
        Self {
            store,
            dir: dir.to_owned(),
            here: Mutex::default(),
        }
    }

    /// The directory of a layer's files; fetched once however many ask.
    ///
    /// # Errors
    /// When it cannot be fetched or does not verify; the next call tries again.
    pub async fn directory(&self, layer: &LayerRef) -> Result<PathBuf, FetchLayerError> {
        let cell = Arc::clone(self.here.lock().entry(layer.digest.clone()).or_default());
        let path = cell
            .get_or_try_init(|| async {
                let path = self.dir.join(&layer.digest);
                fetch_layer(&self.store, layer, &path).await?;
                Ok::<_, FetchLayerError>(path)
            })
            .await?;
        Ok(path.clone())
    }
}
