//! Unpacked layers on this host, by digest. Shared read-only by all sandboxes; may be lost at any time but while in use.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_snapshotter::Store;
use rekindle_snapshotter::layer::{FetchLayerError, Unpack, fetch_layer};
use rekindle_wire::internal::LayerRef;
use tokio::sync::OnceCell;

use crate::confined::Confinement;

/// The unpacked layers of this host.
pub struct Layers {
    store: Store,
    dir: PathBuf,
    unpack: Arc<Unpack>,
    here: Mutex<HashMap<String, Arc<OnceCell<PathBuf>>>>,
}

impl Layers {
    /// Layers below `dir`, unpacked by processes without rights.
    pub fn new(store: Store, dir: &Path, confinement: Confinement) -> Self {
        Self {
            unpack: Arc::new(move |packed, into, name| confinement.layer(packed, into, name)),
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
                fetch_layer(&self.store, layer, &path, &self.unpack).await?;
                Ok::<_, FetchLayerError>(path)
            })
            .await?;
        Ok(path.clone())
    }
}
