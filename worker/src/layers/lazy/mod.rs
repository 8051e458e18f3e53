//! Layers that are read as they are touched: mounted before their files are on this host.
//!
//! ```text
//! sandbox ─► overlay ─► mount (FUSE) ─► [`server`] ─► [`tree`]: names and kinds, from the index
//!                                           └──► [`content`]: bytes, here or fetched by ranges
//! ```
//!
//! What the rehearsal read is fetched at once, the rest once starts leave the processors alone, or at once for a boot.
//! When all is there, the layer is unpacked like any other, and instances from then on use that.

mod content;
mod counts;
mod mount;
mod permits;
mod protocol;
mod server;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use rekindle_init::causes::chain;
use rekindle_init::protocol::FUNCTION_UID;
use rekindle_snapshotter::Store;
use rekindle_snapshotter::layer::{FetchLayerError, OpenedLayer, RangedLayer, Unpack, unpack_layer};
use rekindle_wire::internal::LayerRef;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::host::start_limiter::StartLimiter;
use content::Content;
use counts::FetchReason;
pub(super) use counts::LazyCounts;
use mount::Mount;
pub(crate) use mount::{is_possible, sweep};
use tree::Tree;

/// Maximum number of requests to the store at once, of all layers. One has at most some of them ([`permits`]).
const FETCHES: usize = 16;
/// Maximum number of requests at once for what a rehearsal read, and how long all of them may take.
const AHEAD_AT_ONCE: usize = 8;
const AHEAD_LIMIT: Duration = Duration::from_secs(60);
/// How long after its mount the rest of a layer is left in the store.
const REST_AFTER: Duration = Duration::from_secs(10);
/// How long a request for the rest waits for a moment without a start.
const CALM_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of attempts at the rest, and the pause between them.
const REST_ATTEMPTS: u32 = 10;
const REST_PAUSE: Duration = Duration::from_secs(30);

/// Why a layer is not mounted before it is fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum LazyError {
    /// Its index cannot be had.
    #[error(transparent)]
    Fetch(#[from] FetchLayerError),
    /// Its index makes no file system.
    #[error(transparent)]
    Tree(#[from] tree::TreeError),
    /// This host cannot mount it.
    #[error("mount the layer before it is here")]
    Mount(#[source] io::Error),
}

/// Mounts layers before they are on this host.
pub(super) struct LazyLayers {
    least_bytes: u64,
    mounts: PathBuf,
    disk: PathBuf,
    starts: Arc<StartLimiter>,
    fetches: Arc<Semaphore>,
    counts: Arc<LazyCounts>,
    mounted: AtomicU64,
}

/// A layer mounted before its files are here.
#[derive(Debug)]
pub(super) struct LazyLayer {
    mount: Mount,
    content: Arc<Content>,
    hurry: Notify,
}

impl LazyLayers {
    /// Creates it with mounts below `mounts`, of layers of at least `least_bytes`. What is fetched is on the disk of
    /// `disk`.
    pub(super) fn new(least_bytes: u64, mounts: &Path, disk: &Path, starts: Arc<StartLimiter>) -> Self {
        Self {
            least_bytes,
            mounts: mounts.to_owned(),
            disk: disk.to_owned(),
            starts,
            fetches: Arc::new(Semaphore::new(FETCHES)),
            counts: Arc::default(),
            mounted: AtomicU64::new(0),
        }
    }

    pub(super) fn counts(&self) -> &LazyCounts {
        &self.counts
    }

    /// Unmounts all layers. Blocks.
    pub(super) fn unmount(&self) {
        if let Err(error) = sweep(&self.mounts) {
            tracing::warn!(%error, "layers stay mounted");
        }
    }

    /// Whether a layer is large enough.
    pub(super) fn suits(&self, layer: &LayerRef) -> bool {
        layer.tar_bytes >= self.least_bytes
    }

    /// Mounts a layer. `records` says whether the pieces read are recorded. `None` if the layer has no index.
    pub(super) async fn open(
        &self,
        store: &Store,
        layer: &LayerRef,
        records: bool,
    ) -> Result<Option<LazyLayer>, LazyError> {
        let Some(opened) = RangedLayer::open(store, layer).await? else {
            return Ok(None);
        };
        let OpenedLayer {
            layer,
            entries,
            pieces,
            fetched,
        } = opened;
        self.counts.add(FetchReason::Start, fetched);
        let tree = Tree::new(&entries, layer.tar_bytes(), FUNCTION_UID)?;
        let (fetches, counts) = (Arc::clone(&self.fetches), Arc::clone(&self.counts));
        let number = self.mounted.fetch_add(1, Ordering::Relaxed);
        let (dir, disk) = (
            self.mounts.join(format!("{}-{number}", layer.digest())),
            self.disk.clone(),
        );
        let runtime = Handle::current();
        let mount = move || {
            let content = Arc::new(Content::new(layer, &disk, records, fetches, counts)?);
            content.put(&pieces)?;
            let mount = Mount::new(dir, tree, Arc::clone(&content), runtime)?;
            Ok(LazyLayer {
                mount,
                content,
                hurry: Notify::new(),
            })
        };
        let mounted = tokio::task::spawn_blocking(mount).await.map_err(io::Error::other);
        mounted.flatten().map(Some).map_err(LazyError::Mount)
    }

    /// Fetches what is still missing, once there is time, and unpacks all at `dest`.
    ///
    /// # Errors
    /// Returns the last error when the store or the disk fails again and again.
    pub(super) async fn complete(
        &self,
        lazy: impl Fn() -> Option<(Arc<Content>, bool)>,
        layer: &LayerRef,
        dest: &Path,
        unpack: &Arc<Unpack>,
    ) -> Result<bool, FetchLayerError> {
        let (mut attempt, mut from) = (1, 0);
        loop {
            // Only as long as somebody uses it, and it was not evicted.
            let Some((content, hurries)) = lazy() else {
                return Ok(false);
            };
            if !hurries {
                self.starts.until_calm(CALM_LIMIT).await;
            }
            let done = match content.absent(from) {
                Some(pieces) => {
                    from = pieces.start;
                    content.bring(pieces, FetchReason::Background).await.map(|()| false)
                }
                None => {
                    let packed = content.packed().map_err(|cause| FetchLayerError::Place {
                        path: dest.to_owned(),
                        cause: Arc::new(cause),
                    })?;
                    unpack_layer(layer, packed, dest, unpack).await.map(|()| true)
                }
            };
            match done {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if attempt >= REST_ATTEMPTS => return Err(error),
                Err(error) => {
                    tracing::warn!(layer = %layer.digest, attempt, error = %chain(&error), "the rest of a layer fails");
                    attempt += 1;
                    tokio::time::sleep(REST_PAUSE).await;
                }
            }
        }
    }
}

impl LazyLayer {
    /// Returns the directory of the files.
    pub(super) fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the pieces that were read, if they are recorded.
    pub(super) fn touched(&self) -> Option<Vec<u32>> {
        self.content.touched()
    }

    pub(super) fn content(&self) -> Arc<Content> {
        Arc::clone(&self.content)
    }

    /// Has the rest fetched at once.
    pub(super) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Waits until the rest is to be fetched. Returns whether somebody wants it at once.
    pub(super) async fn until_due(&self) -> bool {
        tokio::time::timeout(REST_AFTER, self.hurry.notified()).await.is_ok()
    }

    pub(super) fn begin(&self, pieces: &[u32]) {
        let (content, runs) = (self.content(), self.content.runs(pieces));
        tracing::debug!(layer = %content.digest(), pieces = pieces.len(), requests = runs.len(), "files ahead");
        let fetch = async move {
            let bring = |run| {
                let content = Arc::clone(&content);
                async move { content.bring(run, FetchReason::Start).await }
            };
            let mut fetched = futures::stream::iter(runs).map(bring).buffer_unordered(AHEAD_AT_ONCE);
            while let Some(run) = fetched.next().await {
                if let Err(error) = run {
                    let error = chain(&error);
                    tracing::warn!(layer = %content.digest(), error, "files that a start will need are not here");
                }
            }
        };
        tokio::spawn(tokio::time::timeout(AHEAD_LIMIT, fetch));
    }
}
