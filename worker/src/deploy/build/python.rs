//! Python packages: installs `requirements.txt` through pip, run by the runtime's own interpreter in the build's
//! sandbox.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rekindle_confined::BindMount;

use super::cache::{CachedTree, DepsCache};
use super::installer::{APP, DEPS, Installer, InstallerError, wanted_compiler};
use super::operator::OperatorConfig;
use super::requirements::{self, Requirements, RequirementsError};
use super::{BuildDir, BuildOrder, Progress, Root, RootError};
use crate::host::disk::tree_bytes;

const PYTHON: &str = "/usr/bin/python3";
/// Where the sandbox sees the lists.
const LIST: &str = "/run/requirements.txt";
const CONSTRAINTS: &str = "/run/constraints.txt";
/// Must change when the same list would be installed differently.
const CACHE_FORMAT: &str = "python 2";

/// Why packages could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// The list was rejected.
    #[error(transparent)]
    Requirements(#[from] RequirementsError),
    /// pip could not run to its end.
    #[error(transparent)]
    Installer(#[from] InstallerError),
    /// The root filesystem or the network that pip needs is not available.
    #[error(transparent)]
    Root(#[from] RootError),
    /// pip failed.
    #[error(
        "pip could not install requirements.txt (for {interpreter} on Linux): {output}{}",
        wanted_compiler(.output)
    )]
    Failed {
        /// The interpreter's name and version.
        interpreter: &'static str,
        /// The end of pip's output.
        output: String,
    },
    /// The worker's own disk failed.
    #[error("{} python packages in {}", .action, .path.display())]
    Disk {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
pub(super) enum Packages {
    Cached(CachedTree),
    /// In the build's own directory.
    Fresh(PathBuf),
}

impl Packages {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Cached(tree) => &tree.path,
            Self::Fresh(path) => path,
        }
    }
}

/// Installs the packages of `requirements.txt`. Returns `None` when it lists no package.
pub(super) async fn install(
    order: &BuildOrder<'_>,
    build_dir: &BuildDir,
    cache: &DepsCache,
    progress: &Progress<'_>,
) -> Result<Option<Packages>, PythonError> {
    let Some(wanted) = requirements::read(&build_dir.app())? else {
        return Ok(None);
    };
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| PythonError::Disk { action, path, source }
    };
    let root = order.tools().await?;
    let configured = OperatorConfig::read();
    let key = cache_key(&wanted, &build_dir.app(), &root, &configured).map_err(failed("read", &build_dir.app()))?;
    if let Some(tree) = cache.get(&key).map_err(failed("look for", &order.work_dir))? {
        progress("python packages were installed before: taken from the cache");
        return Ok(Some(Packages::Cached(tree)));
    }
    progress("installing python packages with pip");
    let list = build_dir.path.join("requirements.txt");
    fs::write(&list, wanted.lines.join("\n") + "\n").map_err(failed("list", &list))?;
    let constraints = build_dir.path.join("constraints.txt");
    fs::write(&constraints, wanted.constraints.join("\n") + "\n").map_err(failed("list", &constraints))?;

    let network = order.network().await?;
    let show = |source, at: &str| BindMount {
        source,
        at: at.into(),
        write: false,
    };
    let installer = Installer {
        network: Some(&network),
        shown: vec![show(list, LIST), show(constraints, CONSTRAINTS)],
        ..python(order, build_dir, root.clone(), &INSTALL)
    };
    let began = Instant::now();
    let finished = installer.run().await?;
    if !finished.success {
        let interpreter = order.config.base.interpreter();
        return Err(PythonError::Failed {
            interpreter: interpreter.map_or("Python", |interpreter| interpreter.version),
            output: finished.output,
        });
    }
    compile(order, build_dir, root, DEPS, "/app/.rekindle/python").await?;
    let deps = build_dir.deps();
    let took = began.elapsed();
    let stored = tokio::task::spawn_blocking({
        let (cache, deps) = (cache.clone(), deps.clone());
        move || cache.put(&key, &deps, tree_bytes(&deps), took)
    });
    let stored = stored
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(failed("keep", &order.work_dir))?;
    Ok(Some(stored.map_or(Packages::Fresh(deps), Packages::Cached)))
}

/// Isolated mode keeps the folder's modules out of pip.
const INSTALL: [&str; 14] = [
    "-I",
    "-m",
    "pip",
    "install",
    "--target",
    DEPS,
    "--no-compile",
    "--no-input",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--progress-bar=off",
    "--requirement=/run/requirements.txt",
    "--constraint=/run/constraints.txt",
    "--no-warn-script-location",
];

fn python<'a, 'o>(
    order: &'a BuildOrder<'o>,
    build_dir: &'a BuildDir,
    root: Vec<PathBuf>,
    arguments: &[&str],
) -> Installer<'a, 'o> {
    Installer {
        order,
        build_dir,
        root,
        network: None,
        program: PYTHON,
        arguments: arguments.iter().map(ToString::to_string).collect(),
        environment: Vec::new(),
        shown: Vec::new(),
    }
}

/// Returns a key from everything that decides what gets installed.
fn cache_key(wanted: &Requirements, app: &Path, root: &[PathBuf], configured: &OperatorConfig) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(CACHE_FORMAT.as_bytes());
    // The layers are named by their digests.
    for layer in root {
        part(layer.file_name().unwrap_or_default().as_encoded_bytes());
    }
    part(&configured.identity);
    for (kind, lines) in [("lines", &wanted.lines), ("constraints", &wanted.constraints)] {
        part(kind.as_bytes());
        lines.iter().for_each(|l| part(l.as_bytes()));
    }
    for archive in &wanted.archives {
        part(&fs::read(app.join(archive))?);
    }
    Ok(hash.finalize().to_hex().to_string())
}

/// Compiles the modules of the uploaded folder with its runtime's interpreter.
pub(super) async fn compile_app(order: &BuildOrder<'_>, build_dir: &BuildDir) -> Result<(), PythonError> {
    let root = vec![order.root(Root::Runtime(order.config.base)).await?];
    compile(order, build_dir, root, APP, APP).await
}

/// Compiles the modules in a directory of the sandbox, which will be mounted at `at`. Compiling runs nothing of them. A
/// module that does not compile is left as it is: whoever imports it gets the error.
async fn compile(
    order: &BuildOrder<'_>,
    build_dir: &BuildDir,
    root: Vec<PathBuf>,
    directory: &str,
    at: &str,
) -> Result<(), PythonError> {
    // Unchecked: the files never change, so nobody needs to check their times at import.
    let arguments = [
        "-P",
        "-s",
        "-S",
        "-m",
        "compileall",
        "-qq",
        "-f",
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        directory,
        "-p",
        at,
        directory,
    ];
    let installer = Installer {
        // The order of sets in the byte code depends on it.
        environment: vec!["PYTHONHASHSEED=0".to_owned()],
        ..python(order, build_dir, root, &arguments)
    };
    installer.run().await?;
    Ok(())
}
