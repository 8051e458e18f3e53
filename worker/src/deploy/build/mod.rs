//! Builds a function's layer from its uploaded folder: what a sandbox mounts at `/app`.
//!
//! ```text
//! source.tar.gz ─► unpack ─► entry is there? ─► requirements.txt / package.json ─► pip / npm ─► pack ─► layer tar
//! ```
//!
//! The folder is not trusted, nor are the packages it names. Unpacking and installing run in processes without
//! privileges ([`crate::host::confined`]). An installer, and the package scripts that it runs, see the files of the
//! runtime and of the build. They reach the registries that the operator allows (`proxy`).

mod allow;
mod build_dir;
mod cache;
mod counts;
mod entry;
pub mod image;
mod installer;
mod node;
mod operator;
mod pack;
mod platform_programs;
mod proxy;
mod python;
mod request;
mod requirements;
mod space;
mod tree;
mod upstream;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rekindle_confined::upload;
use rekindle_wire::ErrorCode;
use rekindle_wire::function_config::{Base, FunctionConfig, Runtime};
use tokio::task::spawn_blocking;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::host::cgroup::Limits;
use crate::host::confined::{ConfinedError, Confinement};
use allow::AllowedHosts;
use build_dir::BuildDir;
use cache::DepsCache;
use entry::{BuildOutput, HandlerLocation};
use installer::Network;
use operator::OperatorConfig;
use proxy::{Proxy, ProxyLimits};

pub use allow::{BuildNetwork, Host, ParseHostError};
pub use build_dir::sweep;
pub use counts::BuildCounts;
pub use entry::{EntryError, check_listing};
pub use installer::InstallerError;
pub use node::NodeError;
pub use pack::PackError;
pub use python::PythonError;
pub use rekindle_confined::image::ImageError;
pub use rekindle_confined::upload::UnpackError;
pub use requirements::RequirementsError;

/// The directory of python packages, relative to `/app`.
pub const PYTHON_PACKAGES: &str = ".rekindle/python";
/// The name by which modules are imported from it, and what it links to. Programs tell packages from their user's
/// modules by `site-packages` in the path.
const SITE_PACKAGES: [&str; 2] = [".rekindle/site-packages", "python"];

const DEPS_CACHE: &str = "deps-cache";
/// Bytes of installed dependencies that are kept in the directory of builds. Blocks.
pub fn dependencies_bytes(work_dir: &Path) -> u64 {
    cache::bytes_in(&work_dir.join(DEPS_CACHE))
}

const LAYER_PREFIX: &str = "layer-";
/// End of the names of folders that were fetched.
pub(crate) const SOURCE_SUFFIX: &str = ".source.tar.gz";

/// Resource limits of a build.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BuildLimits {
    /// Size of the unpacked folder, and again of the function with its dependencies, in bytes.
    pub unpacked_bytes: u64,
    /// Number of files, directories and links in each of these.
    pub files: u64,
    /// How long one run of an installer may take.
    pub install_timeout: Duration,
    /// Memory, processor time and processes of everything that one build runs.
    pub group: Limits,
    /// Size of the installed python packages kept for the next build, in bytes.
    pub cache_bytes: u64,
}

impl Default for BuildLimits {
    fn default() -> Self {
        Self {
            unpacked_bytes: 1 << 30,
            files: 100_000,
            install_timeout: Duration::from_secs(300),
            group: Limits {
                memory_bytes: 2 << 30,
                cpu_cores: 1.0,
                pids: 256,
            },
            cache_bytes: 4 << 30,
        }
    }
}

impl BuildLimits {
    /// Returns how much a build's directory may hold while an installer runs: downloads, the same unpacked, and the
    /// folder.
    fn room_bytes(&self) -> u64 {
        self.unpacked_bytes.saturating_mul(3)
    }
}

/// A root filesystem that a build needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The root filesystem of functions.
    Runtime(Base),
    /// pip and npm, to be laid under it.
    Tools,
}

/// Why a build cannot get what its installer needs.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A root filesystem is not available.
    #[error("{0}")]
    Missing(String),
    /// The network namespace, or the proxy in it, failed.
    #[error("make the network of the build")]
    Network(#[source] io::Error),
}

/// Finds the directory of a root filesystem on this host. The error is a sentence that names the fix.
pub type Roots<'a> = dyn Fn(Root) -> BoxFuture<'a, Result<PathBuf, String>> + Send + Sync + 'a;

/// What to build.
pub struct BuildOrder<'a> {
    /// The uploaded folder.
    pub source_tar_gz: PathBuf,
    /// Its config.
    pub config: &'a FunctionConfig,
    /// The directory of builds and of the cache, on the worker's disk.
    pub work_dir: PathBuf,
    /// Resource limits of the build.
    pub limits: BuildLimits,
    /// The root filesystems of its installers.
    pub roots: &'a Roots<'a>,
    /// The hosts that they may reach.
    pub network: &'a BuildNetwork,
    /// Counters of what they reach.
    pub counts: BuildCounts,
    /// Starts the processes without privileges.
    pub confinement: Confinement,
    /// The control group of the build ([`crate::host::cgroup::Cgroup::procs_files`]); empty for none.
    pub cgroup_procs: Vec<PathBuf>,
}

impl BuildOrder<'_> {
    /// Returns a new name for a tar.
    fn tar(&self) -> PathBuf {
        self.work_dir
            .join(format!("{LAYER_PREFIX}{}.tar", Uuid::new_v4().simple()))
    }

    async fn root(&self, root: Root) -> Result<PathBuf, RootError> {
        (self.roots)(root).await.map_err(RootError::Missing)
    }

    /// Returns the function's root filesystem with the tools under it.
    async fn tools(&self) -> Result<Vec<PathBuf>, RootError> {
        Ok(vec![
            self.root(Root::Runtime(self.config.base)).await?,
            self.root(Root::Tools).await?,
        ])
    }

    /// Creates a network that contains only the proxy.
    async fn network(&self) -> Result<Network, RootError> {
        let configured = OperatorConfig::read();
        let allowed = AllowedHosts::new(self.network, &configured.hosts);
        let limits = ProxyLimits {
            bytes: self.limits.room_bytes(),
            time: self.limits.install_timeout,
        };
        let proxy = Proxy::open(allowed, self.counts.clone(), limits).await;
        Ok(Network {
            proxy: proxy.map_err(RootError::Network)?,
            configured,
        })
    }
}

type Progress<'a> = dyn Fn(&str) + Send + Sync + 'a;

/// Why there is no layer.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The folder was rejected.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// The container image was rejected.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The process that should unpack it failed.
    #[error("unpack the folder")]
    Confined(#[from] ConfinedError),
    /// The entry does not exist.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The root filesystem is not available.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The python packages failed.
    #[error(transparent)]
    Python(#[from] PythonError),
    /// The node packages failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The tar could not be created.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The worker's own disk failed.
    #[error("{action} {}", .path.display())]
    WorkDir {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// A build step panicked or the runtime is shutting down.
    #[error("a build step was cut off")]
    CutOff(#[source] tokio::task::JoinError),
}

impl BuildError {
    /// Returns the error code for the user.
    pub fn code(&self) -> ErrorCode {
        use ErrorCode::{BuildFailed, Internal, InvalidConfig, TooLarge};
        match self {
            Self::Unpack(UnpackError::TooLarge { .. } | UnpackError::TooMany { .. })
            | Self::Image(ImageError::TooLarge { .. } | ImageError::TooMany { .. }) => TooLarge,
            Self::Unpack(UnpackError::Write(..)) | Self::Image(ImageError::Write(..)) | Self::Confined(_) => Internal,
            Self::Unpack(_) | Self::Image(_) | Self::Entry(_) => InvalidConfig,
            Self::Python(PythonError::Installer(e)) | Self::Node(NodeError::Installer(e)) => match e {
                InstallerError::TimedOut { .. }
                | InstallerError::TooLarge { .. }
                | InstallerError::TooDeep { .. }
                | InstallerError::Hoards { .. } => BuildFailed,
                InstallerError::Start { .. } | InstallerError::DiskFull { .. } => Internal,
            },
            Self::Python(PythonError::Root(RootError::Network(_)))
            | Self::Node(NodeError::Root(RootError::Network(_))) => Internal,
            Self::Node(NodeError::Control { .. }) => InvalidConfig,
            Self::Python(PythonError::Disk { .. }) | Self::Node(NodeError::Disk { .. }) => Internal,
            Self::Pack(PackError::Read(..) | PackError::Write(..)) => Internal,
            // If the worker's disk is full, it is not the function's fault.
            Self::Python(PythonError::Failed { output, .. }) | Self::Node(NodeError::Failed { output })
                if installer::had_no_room(output) =>
            {
                Internal
            }
            Self::Root(_) | Self::Python(_) | Self::Node(_) | Self::Pack(_) => BuildFailed,
            Self::WorkDir { .. } | Self::CutOff(_) => Internal,
        }
    }
}

/// The tars that a build has made. The caller removes them.
#[derive(Debug, Clone)]
pub struct Tars {
    /// The function's own files, with names relative to `/app`.
    pub layer: PathBuf,
    /// The root filesystem, if it is a container image's.
    pub rootfs: Option<PathBuf>,
}

impl Tars {
    /// Removes the files. What is left is swept at the worker's next start.
    fn remove(&self) {
        for tar in self.rootfs.iter().chain([&self.layer]) {
            let _ = std::fs::remove_file(tar);
        }
    }
}

/// Builds the layer, and the root filesystem of a container image. Returns tars in `work_dir`. The same folder and the
/// same packages give the same bytes. Must run as root. `progress` receives each step.
///
/// Dropping the future stops the build and leaves nothing.
///
/// # Errors
/// See [`BuildError`]; its text is for the user.
pub async fn build_layer(order: &BuildOrder<'_>, progress: impl Fn(&str) + Send + Sync) -> Result<Tars, BuildError> {
    let work_dir = order.work_dir.clone();
    let failed = |source| BuildError::WorkDir {
        action: "make a build directory in",
        path: order.work_dir.clone(),
        source,
    };
    let build_dir = blocking(move || BuildDir::make(&work_dir)).await?.map_err(failed)?;
    // The blocking steps share it: if the build is given up, the directory is removed when the last of them is done.
    let build_dir = Arc::new(build_dir);
    let built = build_in(order, &build_dir, &progress).await;
    blocking(move || drop(build_dir)).await?;
    built
}

async fn blocking<T: Send + 'static>(step: impl FnOnce() -> T + Send + 'static) -> Result<T, BuildError> {
    spawn_blocking(step).await.map_err(BuildError::CutOff)
}

/// Unpacks the folder, in a process without privileges.
async fn unpack(order: &BuildOrder<'_>, build_dir: &Arc<BuildDir>) -> Result<(), BuildError> {
    let (source, limits) = (order.source_tar_gz.clone(), order.limits);
    let (confinement, build_dir, groups) = (
        order.confinement.clone(),
        Arc::clone(build_dir),
        order.cgroup_procs.clone(),
    );
    let failed = move |path: PathBuf| {
        move |source| BuildError::WorkDir {
            action: "read the uploaded folder",
            path,
            source,
        }
    };
    let unpacked = move || -> Result<(), BuildError> {
        let archive = std::fs::File::open(&source).map_err(failed(source))?;
        let most = upload::Limits {
            unpacked_bytes: limits.unpacked_bytes,
            files: limits.files,
        };
        let done = confinement.upload(
            archive,
            &build_dir.app(),
            build_dir.id,
            most,
            limits.install_timeout,
            &groups,
        )?;
        Ok(done?)
    };
    blocking(unpacked).await?
}

async fn build_in(
    order: &BuildOrder<'_>,
    build_dir: &Arc<BuildDir>,
    progress: &Progress<'_>,
) -> Result<Tars, BuildError> {
    let (config, limits) = (order.config, order.limits);
    progress("unpacking the folder");
    let unpacking = tracing::info_span!("unpack", "rekindle.role" = "worker");
    unpack(order, build_dir).instrument(unpacking).await?;
    if config.image.is_some() {
        return image::build(order, build_dir, progress).await;
    }
    let found = entry::check(config, &build_dir.app())?;

    let packages = match config.base.runtime() {
        Some(Runtime::Python) => {
            let directory = order.work_dir.join(DEPS_CACHE);
            let cache = DepsCache::open(directory, limits.cache_bytes, order.counts.clone()).map_err(|source| {
                BuildError::WorkDir {
                    action: "open the package cache in",
                    path: order.work_dir.clone(),
                    source,
                }
            })?;
            let packages = python::install(order, build_dir, &cache, progress).await?;
            python::compile_app(order, build_dir).await?;
            packages
        }
        Some(Runtime::Node) => {
            node::install(order, build_dir, progress).await?;
            None
        }
        Some(Runtime::Http) | None => None,
    };
    if found == HandlerLocation::Elsewhere {
        let built = BuildOutput {
            app: &build_dir.app(),
            packages: packages.as_ref().map(python::Packages::path),
            root: &order.root(Root::Runtime(config.base)).await?,
        };
        entry::check_built(config, &built)?;
    }

    progress("packing the layer");
    let beside = platform_programs::add(config, build_dir)?;
    let layer = order.tar();
    let (to, build_dir) = (layer.clone(), Arc::clone(build_dir));
    let packing = tracing::info_span!("pack", "rekindle.role" = "worker");
    let packed = blocking(move || {
        let app = build_dir.app();
        let mut trees = vec![
            (Path::new(""), app.as_path()),
            (Path::new(platform_programs::DIRECTORY), beside.as_path()),
        ];
        if let Some(packages) = &packages {
            trees.push((Path::new(PYTHON_PACKAGES), packages.path()));
        }
        let links = packages.iter().map(|_| SITE_PACKAGES.map(Path::new));
        pack::pack(&trees, links, &to, &limits).inspect_err(|_| {
            // What is left is swept at the worker's next start.
            let _ = std::fs::remove_file(&to);
        })
    });
    packed.instrument(packing).await??;
    Ok(Tars { layer, rootfs: None })
}

#[cfg(test)]
mod tests;
