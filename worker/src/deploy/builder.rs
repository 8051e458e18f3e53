//! Builds the layers of a version from what was uploaded, and publishes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use rekindle_snapshotter::layer::publish_layer;
use rekindle_snapshotter::{Owner, Publication, Store, keys};
use rekindle_wire::function_config::Base;
use rekindle_wire::internal::{BUILD_TOOLS, BuiltLayers, LayerRef, PrepareRequest};
use rekindle_wire::{ApiError, ErrorCode};

use super::build::{BuildCounts, BuildLimits, BuildNetwork, BuildOrder, Root, SOURCE_SUFFIX, build_layer};
use crate::errors::unavailable;
use crate::host::cgroup::Cgroups;
use crate::host::confined::Confinement;
use crate::layers::{LayerUse, Layers, runtime_alias};

/// Number of attempts to find a runtime that is being replaced, and the pause between them.
const RUNTIME_ATTEMPTS: u32 = 5;
const RUNTIME_PAUSE: Duration = Duration::from_secs(1);

/// Builds versions' layers.
pub struct Builder {
    /// The store of uploads and layers.
    pub store: Store,
    /// Unpacked layers of this host, among them the builds' root filesystems.
    pub layers: Arc<Layers>,
    /// Control groups of this host.
    pub cgroups: Cgroups,
    /// Runs what needs no privileges.
    pub confinement: Confinement,
    /// Directory of the builds.
    pub work_dir: PathBuf,
    /// What builds can reach.
    pub network: BuildNetwork,
    /// Resource limits of a build.
    pub limits: BuildLimits,
    /// Counters of what builds reach.
    pub counts: BuildCounts,
}

impl Builder {
    pub(super) async fn build(&self, request: &PrepareRequest) -> Result<BuiltLayers, ApiError> {
        // The publication is not finished here. The scheduler finishes it when the version is recorded with its layers.
        let owner = Owner::deploy(&request.function, request.version);
        let publication = Publication::new(self.store.clone(), owner);
        let config = &request.config;
        let runtime = async {
            match config.image {
                None => self.runtime(&publication, config.base).await.map(Some),
                Some(_) => Ok(None),
            }
        };
        let (runtime, built) = tokio::try_join!(runtime, self.tars(request))?;
        let layer = self.publish(&publication, &built.layer).await?;
        let rootfs = match (runtime, &built.rootfs) {
            (_, Some(image)) => self.publish(&publication, image).await?,
            (Some(runtime), None) => runtime,
            (None, None) => return Err(ApiError::new(ErrorCode::Internal, "the image has no root filesystem")),
        };
        Ok(BuiltLayers {
            rootfs,
            layer,
            reaper: false,
        })
    }

    async fn publish(&self, publication: &Publication, tar: &TemporaryFile) -> Result<LayerRef, ApiError> {
        let scratch = tar.0.parent().unwrap_or(Path::new("."));
        let published = publish_layer(&self.store, publication, &tar.0, scratch).await;
        published.map_err(|e| unavailable("publish the function's files", &e))
    }

    /// Returns the root filesystem of a runtime as the store has it now, protected for this deploy.
    async fn runtime(&self, publication: &Publication, base: Base) -> Result<LayerRef, ApiError> {
        for _ in 0..RUNTIME_ATTEMPTS {
            let layer = self.current_runtime(base.as_str()).await?;
            let digest = layer.digest.parse();
            let digest = digest.map_err(|e| unavailable("read the runtime's digest", &e))?;
            let usable = publication.protect_one(keys::layer(&digest)).await;
            if usable.map_err(|e| unavailable("keep the runtime's root filesystem", &e))? {
                return Ok(layer);
            }
            // Another runtime was imported this moment, and the old one is being collected.
            tokio::time::sleep(RUNTIME_PAUSE).await;
        }
        let what = format!("the {} runtime is being replaced: deploy again", base.as_str());
        Err(ApiError::new(ErrorCode::Unavailable, what))
    }

    /// Returns a root filesystem of a build.
    async fn root_filesystem(&self, root: Root) -> Result<LayerUse, String> {
        let name = match root {
            Root::Runtime(base) => base.as_str(),
            Root::Tools => BUILD_TOOLS,
        };
        let layer = self.current_runtime(name).await.map_err(|e| e.message)?;
        let found = self.layers.get(&layer).await;
        found.map_err(|e| unavailable(&format!("fetch the root filesystem \"{name}\""), &e).message)
    }

    async fn current_runtime(&self, name: &str) -> Result<LayerRef, ApiError> {
        runtime_alias(&self.store, name).await.map(|alias| alias.layer)
    }

    /// Builds the function's own layer, and its root filesystem if that is an image's, from the uploaded folder.
    async fn tars(&self, request: &PrepareRequest) -> Result<BuiltTars, ApiError> {
        let work_dir = self.work_dir.clone();
        let source = TemporaryFile(work_dir.join(format!("{}{SOURCE_SUFFIX}", request.instance)));
        let bytes = self
            .store
            .get(&request.source_key)
            .await
            .map_err(|e| unavailable("fetch the uploaded folder", &e))?;
        tokio::fs::write(&source.0, &bytes)
            .await
            .map_err(|e| unavailable("keep the uploaded folder", &e))?;
        let name = format!("build-{}", request.instance);
        let cgroup = self
            .cgroups
            .create(&name, self.limits.group)
            .map_err(|e| unavailable("bound the build", &e))?;
        // The layers stay until the build is over.
        let used = &Mutex::new(Vec::new());
        let roots = |root| {
            async move {
                let layer = self.root_filesystem(root).await?;
                let path = layer.path().to_owned();
                used.lock().push(layer);
                Ok(path)
            }
            .boxed()
        };
        let order = BuildOrder {
            roots: &roots,
            network: &self.network,
            counts: self.counts.clone(),
            source_tar_gz: source.0.clone(),
            config: &request.config,
            work_dir,
            limits: self.limits,
            confinement: self.confinement.clone(),
            cgroup_procs: cgroup.procs_files(),
        };
        let built = build_layer(&order, |line| tracing::debug!(line, "build")).await;
        let tars = built.map_err(|e| ApiError::new(e.code(), unavailable("build the function", &e).message))?;
        Ok(BuiltTars {
            layer: TemporaryFile(tars.layer),
            rootfs: tars.rootfs.map(TemporaryFile),
        })
    }
}

/// The tars of a build, removed when dropped.
struct BuiltTars {
    layer: TemporaryFile,
    rootfs: Option<TemporaryFile>,
}

struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // The file may never have been created.
        let _ = std::fs::remove_file(&self.0);
    }
}
